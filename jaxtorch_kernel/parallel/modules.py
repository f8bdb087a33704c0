"""Shard the parameters and buffers of a module by their names.

All shardings are computed and checked first; then each tensor is changed in place. Tied parameters, and tensors over
the same memory, are sharded once and stay tied.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from torch import nn
from torch.nn.parameter import is_lazy

from ..programs import tracing
from . import layouts, meshes, units
from .specs import Spec, resolved

Tensor = torch.Tensor
Rules: TypeAlias = "Mapping[str, Spec]"  # from a pattern of names to a spec


@dataclass
class SharedTensors:
    """Tensors over the same memory, under all of their names."""

    kind: str  # "parameter" or "buffer"
    names: list[str]
    tensors: list[Tensor] = field(default_factory=list)

    @property
    def tensor(self) -> Tensor:
        """One of them."""
        return self.tensors[0]

    def __str__(self) -> str:
        return f"{self.kind} {self.names[0]!r}"


def shard(module: nn.Module, spec: Spec | Rules, mesh: Mesh | None, caller: str) -> None:
    """Shard a module by rules, or all of its tensors by one spec."""
    where = mesh_for(module, mesh, spec, caller)
    rules: Rules = spec if isinstance(spec, Mapping) else {"*": spec}
    shard_each(module, by_rules(module, rules, caller), where, caller)


# Chooses the spec of a tensor. None keeps its sharding if it is on the mesh, and replicates it otherwise.
Choose: TypeAlias = "Callable[[SharedTensors, Mesh], Spec]"


def shard_each(module: nn.Module, choose: Choose, mesh: Mesh, caller: str) -> None:
    """Shard the tensors of a module in place, or change nothing and raise.

    Args:
        module: the module that has the parameters and buffers.
        choose: returns the spec of each.
        mesh: the mesh to shard over.
        caller: the function that the user called, for messages.

    Raises:
        ValueError, TypeError: a spec or a tensor is not possible.
        RuntimeError: in captured code.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"{caller} takes a module, not an object of type {type(module).__name__}")
    if tracing.active():
        raise RuntimeError(f"{caller}: captured code cannot shard a module: call it outside")
    targets: list[tuple[SharedTensors, Sharding]] = []
    for each in shared_tensors(module, caller):
        spec = choose(each, mesh)
        spec = present_spec(each, mesh) if spec is None else spec
        what = f"{caller}: {each}"
        targets.append((each, resolved(spec, mesh, each.tensor.shape, what)))
    for each, target in targets:
        _set_sharding(each, target)
    units.note_layout(module, mesh)


def _set_sharding(each: SharedTensors, target: Sharding) -> None:
    for tensor in each.tensors:
        if layouts.memory_of(tensor) != layouts.memory_of(each.tensor):  # it got memory of its own
            tensor.data = each.tensor.data
        layouts.set_sharding(tensor, target)
        if each.kind == "parameter":
            layouts.shard_gradients(tensor)


def present_spec(each: SharedTensors, mesh: Mesh) -> PartitionSpec:
    """The spec of a tensor on a mesh; replicated if it is not on this mesh."""
    return PartitionSpec(*layouts.spec_on(each.tensor, mesh))


def shared_tensors(module: nn.Module, caller: str) -> list[SharedTensors]:
    """The tensors of a module, in the order of their names.

    Raises:
        TypeError: one of them has no array.
    """
    by_memory: dict[object, SharedTensors] = {}
    for kind, name, tensor in _named(module):
        if is_lazy(tensor):
            raise TypeError(
                f"{caller}: {kind} {name!r} has no shape yet: call the module once to initialize its lazy layers"
            )
        layouts.check_dense(tensor, f"{caller}: {kind} {name!r}")
        group = by_memory.setdefault(layouts.memory_of(tensor), SharedTensors(kind, []))
        group.names.append(name)
        if not any(tensor is other for other in group.tensors):
            group.tensors.append(tensor)
    return list(by_memory.values())


def _named(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        yield "parameter", name, parameter
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield "buffer", name, buffer


def mesh_for(module: nn.Module, given: object, rules: object, caller: str) -> Mesh:
    """The mesh that the user passed, else that of `jax.set_mesh`, of a rule, or of the module's tensors.

    Raises:
        ValueError: there is none.
    """
    mesh = meshes.chosen(given)
    if mesh is None:
        specs = rules.values() if isinstance(rules, Mapping) else [rules]
        mesh = next((s.mesh for s in specs if isinstance(s, NamedSharding)), None)
    if mesh is None:
        on_meshes = (layouts.mesh_of(tensor) for _, _, tensor in _named(module))
        mesh = next((m for m in on_meshes if m is not None), None)
    if mesh is None:
        raise ValueError(
            f"{caller}: no mesh was given: pass mesh=jaxtorch.mesh(...), or call jax.set_mesh(mesh) first"
        )
    return meshes.concrete(mesh, caller)


def by_rules(module: nn.Module, rules: Rules, caller: str) -> Choose:
    """Choose by the first pattern that matches a name of the tensor; tied parameters have several names.

    Raises:
        ValueError: a rule matches nothing.
    """
    names = [name for _, name, _ in _named(module)]
    for pattern in rules:
        if not any(fnmatchcase(name, pattern) for name in names):
            close = difflib.get_close_matches(pattern, names, 1, cutoff=0.0)
            example = f". Did you mean {close[0]!r}?" if close else ""
            raise ValueError(
                f"{caller}: the rule {pattern!r} matches no parameter or buffer of the module{example}"
            )

    def choose(each: SharedTensors, mesh: Mesh) -> Spec:
        for pattern, spec in rules.items():
            if any(fnmatchcase(name, pattern) for name in each.names):
                return PartitionSpec() if spec is None else spec
        return None

    return choose
