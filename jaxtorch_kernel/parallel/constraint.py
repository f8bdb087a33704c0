"""The tensors of a pytree laid out on a mesh: eagerly by copies, in captured code by constraints of its program.

Captured code has no values to move, so `jax.lax.with_sharding_constraint`, called through `call_jax`, states the
sharding for XLA. The specs are checked inside that call, where the shapes of the arrays are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast

import jax
import torch
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..base.torch_private import pytree
from ..interop.call_jax import call_jax
from ..programs import tracing
from . import layouts, meshes
from .specs import UNCONSTRAINED, AnyMesh, Spec, axes_of, resolved

T = TypeVar("T")
Tensor = torch.Tensor
# One spec for all tensors, or those of the parts of a container.
Specs: TypeAlias = "Spec | Mapping[str, Specs] | Sequence[Specs]"


def with_sharding_constraint(x: T, sharding: Specs) -> T:
    """Constrain how a tensor is sharded over devices: `jax.lax.with_sharding_constraint`, in captured code and eagerly.

    Eagerly, a tensor with another sharding is copied, as by `jaxtorch.shard`.

    Args:
        x: a tensor on the jax device, of any shape and dtype, or a pytree of them.
        sharding: a spec, as in `jaxtorch.shard`. For a dimension with `PartitionSpec.UNCONSTRAINED`, XLA chooses;
            eagerly, the dimension keeps its sharding.

    Returns:
        The same values. In captured code the gradient gets the same constraint; eagerly it gets the sharding of x.

    Raises:
        ValueError: a spec does not fit the mesh or the tensor, or there is no mesh.
        TypeError: `sharding` is not a spec, or x has no tensors.

    Example:
        >>> import torch, jaxtorch
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> rows = NamedSharding(jaxtorch.mesh(1, "data"), PartitionSpec("data", None))
        >>> f = jaxtorch.pure(lambda x: jaxtorch.with_sharding_constraint(x.sin(), rows) * 2)
        >>> f(torch.zeros(2, 2, device="jax"))
        tensor([[0., 0.],
                [0., 0.]], device='jax:0')
    """
    return placed(x, sharding, None, "with_sharding_constraint")


def placed(x: T, spec: Specs, mesh: AnyMesh | None, caller: str) -> T:
    """The tensors of a tree, each with the sharding of its spec. If one spec does not fit, nothing is moved.

    Args:
        x: a tensor or a pytree of them.
        spec: of all, or a container of specs like x.
        mesh: the mesh, unless a spec names its own; by default that of `jax.set_mesh`.
        caller: the function that the user called, for messages.
    """
    if isinstance(x, Tensor):
        return cast(T, _placed([x], [cast(Spec, spec)], mesh, [caller])[0])
    leaves, structure = pytree.tree_flatten(x)
    chosen = list(_by_leaf(x, spec, caller))
    indices = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not indices:
        raise TypeError(
            f"{caller}: expected a tensor or a container of tensors, got {type(x).__name__}"
        )
    tensors = [leaves[i] for i in indices]
    names = [f"{caller}: tensor {n} of {len(indices)}" for n in range(1, len(indices) + 1)]
    for i, tensor in zip(
        indices, _placed(tensors, [chosen[i] for i in indices], mesh, names), strict=True
    ):
        leaves[i] = tensor
    return cast(T, pytree.tree_unflatten(leaves, structure))


def _placed(
    tensors: list[Tensor], chosen: list[Spec], mesh: AnyMesh | None, names: list[str]
) -> list[Tensor]:
    if torch.compiler.is_dynamo_compiling() or tracing.active():
        return cast(list[Tensor], call_jax(_constrained, tensors, chosen, mesh, names))
    targets = [_target(*each, mesh) for each in zip(tensors, chosen, names, strict=True)]
    return list(map(layouts.moved, tensors, targets))


def _constrained(
    arrays: list[jax.Array], chosen: list[Spec], mesh: AnyMesh | None, names: list[str]
) -> list[jax.Array]:
    """A JAX function: the arrays, each with the constraint of its spec."""
    return [
        jax.lax.with_sharding_constraint(a, resolved(spec, mesh, a.shape, name))
        for a, spec, name in zip(arrays, chosen, names, strict=True)
    ]


def _target(x: Tensor, spec: Spec, what: str, mesh: AnyMesh | None) -> Sharding:
    """The sharding for an eager tensor: on the mesh where it already is, if no other is given."""
    layouts.check_dense(x, what)
    where = resolved(spec, mesh, x.shape, what, layouts.mesh_of(x))
    if not isinstance(where, NamedSharding):
        return where
    meshes.concrete(where.mesh, what)
    return NamedSharding(where.mesh, _as_before(where, x))


def _as_before(where: NamedSharding, x: Tensor) -> PartitionSpec:
    """The spec of a sharding, in which UNCONSTRAINED is replaced by the axes along which x is sharded."""
    if UNCONSTRAINED not in where.spec:
        return where.spec
    before = layouts.spec_on(x, meshes.concrete(where.mesh, "shard"))
    used = {name for entry in where.spec for name in axes_of(entry)}
    kept = [
        None if used.intersection(axes_of(old)) else old
        for old in (*before, *(None,) * (len(where.spec) - len(before)))
    ]
    entries = [
        old if new is UNCONSTRAINED else new for new, old in zip(where.spec, kept, strict=False)
    ]
    return PartitionSpec(*entries)


def _by_leaf(x: object, spec: Specs, caller: str) -> Iterator[Spec]:
    """The spec of each leaf of a tree, in the order of its leaves."""
    if isinstance(x, dict) and isinstance(spec, Mapping):
        if x.keys() != spec.keys():
            names = sorted(map(str, x.keys() ^ spec.keys()))
            raise ValueError(
                f"{caller}: the specs must have the keys of the tensors, but {names} differ"
            )
        for key, part in x.items():
            yield from _by_leaf(part, spec[key], caller)
    elif isinstance(x, list | tuple) and isinstance(spec, list | tuple):
        if len(x) != len(spec):
            raise ValueError(f"{caller}: {len(spec)} specs were given for {len(x)} tensors")
        for part, of_part in zip(x, spec, strict=True):
            yield from _by_leaf(part, of_part, caller)
    else:
        yield from [cast(Spec, spec)] * len(pytree.tree_leaves(x))
