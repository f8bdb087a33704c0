"""Check that layers are alike, so that the code of one can run for all of them (`scan_layers`, `stack_layers`).

Layers are alike if their classes, shapes, submodules and hooks are the same and their attributes are equivalent. Only
the values of parameters and buffers may differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType

import torch
from torch import nn

from ..storage.layout import covers_buffer
from .dependencies.followed import MODULE_ATTRIBUTES
from .dependencies.tokens import is_plain
from .errors import CaptureError

Tensor = torch.Tensor


@dataclass
class State:
    """A layer's parameters and buffers: `names` has all their names, `tensors` each tensor once."""

    names: dict[str, int]
    tensors: list[Tensor]

    @property
    def size(self) -> int:
        """The number of tensors."""
        return len(self.tensors)


def state_of(layer: nn.Module) -> State:
    """A layer's tensors."""
    names: dict[str, int] = {}
    indices: dict[int, int] = {}
    tensors: list[Tensor] = []
    for name, tensor in _names_and_tensors(layer):
        if id(tensor) not in indices:
            indices[id(tensor)] = len(tensors)
            tensors.append(tensor)
        names[name] = indices[id(tensor)]
    return State(names, tensors)


def _names_and_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from layer.named_parameters(remove_duplicate=False)
    yield from layer.named_buffers(remove_duplicate=False)


def layers_of(layers: Iterable[nn.Module], caller: str) -> list[nn.Module]:
    """The layers, as a list.

    Raises:
        TypeError: if they are not modules.
    """
    if not isinstance(layers, Iterable) or isinstance(layers, str | Mapping | nn.ModuleDict):
        raise TypeError(
            f"{caller} takes a list of modules, such as an nn.ModuleList, not {type(layers).__name__}"
        )
    modules = list(layers)
    for i, layer in enumerate(modules):
        if not isinstance(layer, nn.Module):
            raise TypeError(
                f"{caller} takes modules, but layer {i} is {type(layer).__name__}: use jaxtorch.scan for a function"
            )
    return modules


def check_whole(state: State, i: int) -> None:
    """Check that each tensor of a layer is on the device, with memory of its own.

    Raises:
        CaptureError: if one is a view.
        TypeError: if one is on another device.
    """
    for name, index in state.names.items():
        device = state.tensors[index].device
        if device.type != "jax":
            raise TypeError(f"{name} of layer {i} is on {device}: move the layers with .to('jax')")
        if not covers_buffer(state.tensors[index]):
            raise CaptureError(
                f"{name} of layer {i} is a view of a larger tensor",
                "Give each layer its own tensors.",
            )


def check_alike(
    template: nn.Module, layer: nn.Module, old: State, new: State, i: int, ignore: tuple[str, ...]
) -> None:
    """Check that a layer is like the first.

    Raises:
        CaptureError: if it differs.
    """
    if type(template) is not type(layer):
        raise _differ(i, "class", type(layer).__name__, type(template).__name__)
    for name in [*old.names, *new.names]:
        a, b = _describe(old, name), _describe(new, name)
        if a != b:
            raise _differ(i, name, b, a)
    modules, others = list(template.named_modules()), list(layer.named_modules())
    if [name for name, _ in modules] != [name for name, _ in others]:
        names = {n for n, _ in modules} ^ {n for n, _ in others}
        odd = sorted(names)[0]
        here, first = ("there", "missing") if odd in dict(others) else ("missing", "there")
        raise _differ(i, f"submodule {odd}", here, first)
    pairs = [(a, b) for (_, a), (_, b) in zip(modules, others, strict=True)]
    known = {(id(a), id(b)) for a, b in pairs}
    for (name, _), (a, b) in zip(modules, pairs, strict=True):
        _check_attributes(a, b, i, f"{name}." if name else "", ignore, known)


def _describe(state: State, name: str) -> str:
    index = state.names.get(name)
    if index is None:
        return "missing"
    tensor = state.tensors[index]
    gradient = ", requires_grad" if tensor.requires_grad else ""
    shape = f"{tensor.dtype}{list(tensor.shape)} on {tensor.device.type}{gradient}"
    tied = [other for other, i in state.names.items() if i == index]
    return shape if len(tied) == 1 else f"{shape}, tied: {' and '.join(tied)}"


def _check_attributes(
    first: nn.Module,
    other: nn.Module,
    i: int,
    prefix: str,
    ignore: tuple[str, ...],
    known: set[tuple[int, int]],
) -> None:
    if type(first) is not type(other):
        raise _differ(i, prefix.rstrip(".") or "class", type(other).__name__, type(first).__name__)
    old, new = _attributes(first), _attributes(other)
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if name not in ignore and not _alike(a, b, known):
            raise _differ(i, f"{prefix}{name}", *_shown(b, a))


def _attributes(module: nn.Module) -> dict[str, object]:
    """The attributes of a module itself, and its hooks in the order in which they run."""
    attributes = {
        name: value for name, value in vars(module).items() if name not in MODULE_ATTRIBUTES
    }
    for name in MODULE_ATTRIBUTES:
        if "hooks" in name and (hooks := getattr(module, name)):
            attributes[name] = [*hooks.values()]
    return attributes


def _alike(a: object, b: object, known: set[tuple[int, int]]) -> bool:
    """Whether two values are equivalent for the code of a layer. `known`: equivalent pairs of objects, by identity."""
    if a is b or (id(a), id(b)) in known:
        return True
    if type(a) is not type(b) or isinstance(a, Tensor | nn.Module):
        return (
            False  # a tensor or module that is not registered: the code would use that of layer 0
        )
    if is_plain(a):
        return bool(a == b)
    known.add((id(a), id(b)))
    return [*_keys(a)] == [*_keys(b)] and all(
        _alike(x, y, known) for x, y in zip(_parts(a), _parts(b), strict=True)
    )


def _keys(value: object) -> Iterable[object]:
    """The names of the parts that `_parts` returns; for a set, whose elements have no names, the set itself."""
    if isinstance(value, set | frozenset):
        return [value]
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple | deque | FunctionType | MethodType | partial):
        return range(len(_parts(value)))
    return getattr(value, "__dict__", [id(value)])


def _parts(value: object) -> Sequence[object]:
    """The parts that an object consists of."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | deque):
        return list(value)
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        variables = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *variables]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    return list(getattr(value, "__dict__", {}).values())


def _shown(*values: object) -> list[str]:
    """Texts of values for a message, distinct even if their texts are equal."""
    texts = [repr(v) if is_plain(v) or isinstance(v, list) else type(v).__name__ for v in values]
    texts = [text if len(text) < 60 else f"{text[:56]} ..." for text in texts]
    if len(set(texts)) < len(texts):
        texts[0] = f"a different {texts[0]}"
    return texts


def _differ(i: int, name: str, new: str, old: str) -> CaptureError:
    return CaptureError(
        f"layers that run as one loop must be identical, but {name} is {new} in layer {i} and {old} in layer 0",
        "The code of layer 0 runs for all layers: call layers that differ separately, or use a Python loop. List "
        "attributes that the code does not use in ignore=(...).",
    )
