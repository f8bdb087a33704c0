"""A module's inputs, spread over a mesh along their batch dimension.

`data_parallel` and `fsdp` register a `BatchHook` on the module, a forward pre-hook like any other: it is seen in
`module._forward_pre_hooks`, and calling them with `shard_batch=False` removes it. Sharding changes no values, so an
input whose size is not divisible by the number of devices (a smaller last batch) is replicated instead.

In captured code the hook is a constraint along the batch dimension, which leaves the others to XLA. Eagerly, a tensor
that is already on a mesh is left unchanged.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

from ..base.torch_private import is_wrapped, pytree
from ..interop.call_jax import call_jax
from ..programs import tracing
from . import layouts, meshes
from .specs import UNCONSTRAINED

Tensor = torch.Tensor
Inputs: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"


class BatchHook:
    """The forward pre-hook that spreads a module's inputs over axes of a mesh.

    Args:
        mesh: where; None leaves the inputs as they are, as in a module that was loaded from a file.
        axes: of the mesh, along the batch dimension.
        dimension: the batch dimension of the inputs.
    """

    def __init__(self, mesh: Mesh | None, axes: tuple[str, ...], dimension: int):
        self.mesh = None if mesh is None else meshes.auto(mesh)
        self.axes, self.dimension = axes, dimension
        self.parts = 1 if mesh is None else math.prod(mesh.shape[axis] for axis in axes)

    def __repr__(self) -> str:
        return f"BatchHook(axes={self.axes}, dimension={self.dimension})"

    def __reduce__(self) -> tuple[type[BatchHook], tuple[None, tuple[str, ...], int]]:
        return BatchHook, (None, self.axes, self.dimension)  # devices cannot be pickled

    def __deepcopy__(self, memo: dict[int, object]) -> BatchHook:
        return self

    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Inputs:
        """The inputs of a call of the module, spread over the mesh."""
        if self.mesh is None:
            return args, kwargs
        spread: Inputs = pytree.tree_map_only(Tensor, self.spread, (args, kwargs))
        return spread

    def spread(self, x: Tensor) -> Tensor:
        """One input, spread over the mesh."""
        if x.device.type != "jax" or self.mesh is None:
            return x
        divides = x.dim() > self.dimension and x.shape[self.dimension] % self.parts == 0
        # Dynamo looks into this method, so the functions of this package come after it.
        if torch.compiler.is_dynamo_compiling() or tracing.active():
            constrained: Tensor = call_jax(self.constrained, x) if divides else x
            return constrained
        if is_wrapped(x):
            return x  # a tensor of `torch.vmap` or `torch.func.grad` has no memory of its own
        if layouts.mesh_of(x) is not None:
            return x
        spec = self._spec(x.dim(), None) if divides else PartitionSpec()
        return layouts.moved(x, NamedSharding(self.mesh, spec))

    def constrained(self, x: jax.Array) -> jax.Array:
        """A JAX function: the array, constrained along its batch dimension."""
        assert self.mesh is not None
        where = NamedSharding(self.mesh, self._spec(x.ndim, UNCONSTRAINED))
        return jax.lax.with_sharding_constraint(x, where)

    def _spec(self, rank: int, other: object) -> PartitionSpec:
        entries = [other] * rank
        entries[self.dimension] = self.axes if len(self.axes) > 1 else self.axes[0]
        return PartitionSpec(*entries)


def spread_batches(module: nn.Module, mesh: Mesh, axis: str, dimension: int, on: bool) -> None:
    """Register the hook on a module, or add an axis to the one that it has for this mesh; remove it if not `on`.

    Hooks of its parts, by earlier calls for them, follow: a part must not spread its inputs over fewer axes.
    """
    axes = _joined(mesh, (axis,), _taken(module))
    if not on:
        return
    _register(module, BatchHook(mesh, axes, dimension))
    for part in module.modules():
        if part is not module and (hook := _taken(part)):
            _register(part, BatchHook(mesh, _joined(mesh, axes, hook), hook.dimension))


def _register(module: nn.Module, hook: BatchHook) -> None:
    module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)


def _taken(module: nn.Module) -> BatchHook | None:
    """The hook that a module has, which is removed."""
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BatchHook):
            del module._forward_pre_hooks[key]
            return hook
    return None


def _joined(mesh: Mesh, axes: tuple[str, ...], hook: BatchHook | None) -> tuple[str, ...]:
    """Axes, and those of a hook for the same mesh, in the order of the mesh."""
    more = hook.axes if hook is not None and hook.mesh == meshes.auto(mesh) else ()
    return tuple(name for name in mesh.axis_names if name in (*axes, *more))
