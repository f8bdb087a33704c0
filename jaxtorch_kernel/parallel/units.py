"""The parameters of a module that `fsdp` was called for, gathered while captured code calls the module.

Parameters and batch are cut along the same axis, so XLA has to gather one of the two for each layer. By itself it
gathers the smaller one, which is the activation where a batch has fewer rows than a layer has columns. So a forward
pre-hook puts a constrained copy of each parameter in its place, whole along the axis, and a forward hook puts the
parameter back. The gradient reaches the parameter through the constraint. Inside a scan, or under
`torch.utils.checkpoint`, the copy belongs to one call of the module.

The module's code may change what is in place of the parameter. A value that it writes to the copy (`max_norm` of an
Embedding does) is written to the parameter, and a parameter that it assigns stays.

A parameter belongs to the innermost module that `fsdp` was called for. Eagerly the hooks do nothing. Under
`torch.compile`, the outermost unit puts copies of all parameters in place: Dynamo allows no change of a module in a
checkpointed block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn

from ..base import torch_private as private
from ..interop.call_jax import call_jax
from ..programs import tracing
from . import layouts, meshes
from .specs import axes_of

Tensor = torch.Tensor


class Replaced(NamedTuple):
    """What to put back: an attribute of a module with its value, and the copy if it is a parameter."""

    module: nn.Module
    name: str
    value: object
    copy: Tensor | None


class Cut(NamedTuple):
    """A parameter that is cut along an axis: where it is in the unit, its name, and its spec without the axis."""

    path: tuple[str, ...]
    name: str
    whole: PartitionSpec


class Unit:
    """The two hooks of a module.

    Args:
        mesh: where it lies; None in a module that was loaded from a file.
        axes: along which `fsdp` cuts its parameters.
    """

    def __init__(self, mesh: Mesh | None, axes: tuple[str, ...]):
        self.mesh, self.axes = mesh, axes
        self.cut: list[Cut] = []
        self.of_parts: list[Cut] = []  # those of the units in this one
        self.put: list[list[Replaced]] = []  # what to put back, for each call in progress

    def __reduce__(self) -> tuple[type[Unit], tuple[None, tuple[str, ...]]]:
        return Unit, (None, self.axes)  # devices cannot be pickled

    def __deepcopy__(self, memo: dict[int, object]) -> Unit:
        copied = Unit(self.mesh, self.axes)
        copied.cut, copied.of_parts = list(self.cut), list(self.of_parts)
        memo[id(self)] = copied
        return copied

    def gather(self, module: nn.Module, args: tuple[object, ...]) -> None:
        """The forward pre-hook."""
        if self.mesh is None:
            return
        if torch.compiler.is_dynamo_compiling():  # it must not look into functions of a trace
            if not _compiled:
                _compiled.append(self)
                self._put_copies(module, self.mesh, [*self.cut, *self.of_parts])
        elif (trace := tracing.current()) is not None:
            trace.at_end.append(partial(self._restore_calls, len(self.put)))
            self._put_copies(module, self.mesh, self.cut)
            for _, _, parameter, copy in self.put[-1]:
                if copy is not None:
                    trace.root.stand_ins[copy] = parameter

    def _put_copies(self, module: nn.Module, mesh: Mesh, cut: list[Cut]) -> None:
        put: list[Replaced] = []
        self.put.append(put)
        found = [
            (part, each, parameter)
            for each in cut
            if (part := _part(module, each.path)) is not None
            and (parameter := part._parameters.get(each.name)) is not None
            # A transform of torch.func needs the parameter itself.
            and (torch.compiler.is_dynamo_compiling() or not private.is_wrapped(parameter))
        ]
        if not found:
            return
        given = [parameter for _, _, parameter in found]
        whole = call_jax(_constrained, given, [each.whole for _, each, _ in found], mesh)
        for (part, each, parameter), tensor in zip(found, whole, strict=True):
            lists = [key for key in private.LISTS_OF_PARAMETERS if key in part.__dict__]
            put += [Replaced(part, key, part.__dict__[key], None) for key in lists]
            put.append(Replaced(part, each.name, parameter, tensor))
            part._parameters[each.name] = tensor

    def restore(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        """The forward hook. In captured code, torch does not call it after an error; the end of the trace does."""
        if self.put:
            if not torch.compiler.is_dynamo_compiling():
                _write_back(self.put[-1])
            self._restore_calls(len(self.put) - 1)
            if self in _compiled:
                _compiled.remove(self)

    def _restore_calls(self, remaining: int) -> None:
        while len(self.put) > remaining:
            for part, name, value, copy in self.put.pop():
                if copy is None:
                    setattr(part, name, value)
                elif part._parameters.get(name) is copy:
                    part._parameters[name] = value  # type: ignore[assignment]  # what it was


_compiled: list[Unit] = []  # the outermost one that Dynamo is in


def _write_back(put: list[Replaced]) -> None:
    """Write to the parameters what the module's code has written to their copies."""
    with torch.no_grad():
        for _, _, value, copy in put:
            # A tensor of inference mode has no version.
            if copy is not None and not copy.is_inference() and copy._version:
                assert isinstance(value, Tensor)
                value.copy_(copy)


def _part(module: nn.Module, path: tuple[str, ...]) -> nn.Module | None:
    """The part of a module; None if the user has removed it since."""
    # get_submodule calls hasattr, which Dynamo does not take for a recurrent layer.
    for name in path:
        child = module._modules.get(name)
        if child is None:
            return None
        module = child
    return module


def _constrained(
    arrays: list[jax.Array], specs: list[PartitionSpec], mesh: Mesh
) -> list[jax.Array]:
    """A JAX function: each array with a spec."""
    return [
        jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
        for x, spec in zip(arrays, specs, strict=True)
    ]


def unit_of(module: nn.Module) -> Unit | None:
    """The unit of a module that `fsdp` was called for."""
    for hook in module._forward_pre_hooks.values():
        unit = getattr(hook, "__self__", None)
        if isinstance(unit, Unit):
            return unit
    return None


def make_unit(module: nn.Module, mesh: Mesh, axis: str) -> None:
    """Register the hooks on a module, or add an axis to those that it has."""
    unit = unit_of(module)
    if unit is None:
        unit = Unit(mesh, ())
        module.register_forward_pre_hook(unit.gather)
        module.register_forward_hook(unit.restore, always_call=True)
    unit.axes = tuple(name for name in mesh.axis_names if name in (*unit.axes, axis))
    note_layout(module, mesh)


def note_layout(module: nn.Module, mesh: Mesh) -> None:
    """Tell the units in a module how its parameters lie, after they were placed on a mesh."""
    for part in module.modules():
        unit = unit_of(part)
        if unit is not None:
            unit.mesh = meshes.auto(mesh)
            unit.cut = list(_cut(part, (), unit, set(), False))
            own = {(each.path, each.name) for each in unit.cut}
            every = _cut(part, (), unit, set(), True)
            unit.of_parts = [each for each in every if (each.path, each.name) not in own]


def _cut(
    module: nn.Module, path: tuple[str, ...], unit: Unit, seen: set[nn.Module], nested: bool
) -> Iterator[Cut]:
    """The parameters of a unit that are cut along its axes; of units in it, too, if `nested`."""
    seen.add(module)
    assert unit.mesh is not None
    for name, parameter in module._parameters.items():
        spec = () if parameter is None else layouts.spec_on(parameter, unit.mesh)
        if any(axis in unit.axes for entry in spec for axis in axes_of(entry)):
            kept = [[axis for axis in axes_of(e) if axis not in unit.axes] for e in spec]
            yield Cut(path, name, PartitionSpec(*(tuple(names) or None for names in kept)))
    for name, child in module._modules.items():
        if child is not None and child not in seen and (nested or unit_of(child) is None):
            yield from _cut(child, (*path, name), unit, seen, nested)
