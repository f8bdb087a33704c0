"""The template of a call: the arguments of its lowering, with a slot for each tensor and each number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from ..lowerings.types import Number
from ..storage.dtypes import to_numpy
from .call import kind_of_tensor, number_kind
from .numbers import Bound, limits
from .schema import FLAG, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS

Tensor = torch.Tensor


class Slot:
    """The tensor with this index among the tensors of the call."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


class NumberSlot:
    """One number of the call.

    Attributes:
        kind: its kind.
        index: its index among the numbers of its kind.
        position: its index among all numbers.
        dtype: that of a 0-dim CPU tensor; None for a Python number.
        scalar: whether it is a Scalar argument, which must fit the dtype it is cast to; an operand wraps instead.
    """

    __slots__ = ("dtype", "index", "kind", "position", "scalar")

    def __init__(self, kind: str, index: int, position: int, dtype: np.dtype | None, scalar: bool):
        self.kind, self.index, self.position = kind, index, position
        self.dtype, self.scalar = dtype, scalar


class Template:
    """The arguments of a lowering, in the order of the schema.

    Attributes:
        entries: one for each argument: a slot, a list of entries, or the argument itself.
        tensor_names: names of the tensors for views: those of their arguments.
        number_names: of the numbers, by kind.
        bounds: the range that each Scalar must be in. Filling the template finds them, because the lowering decides
            which dtypes a Scalar is cast to.
        pointwise: whether a 0-dim CPU tensor is a `Number`, which is not rounded to the dtype of the result first. The
            lowerings of other operators take it as an array.
    """

    __slots__ = ("bounds", "entries", "number_names", "pointwise", "tensor_names")

    def __init__(
        self,
        entries: list[object],
        tensor_names: Sequence[str],
        number_names: Mapping[str, Sequence[str]],
        pointwise: bool,
    ):
        self.entries, self.pointwise = entries, pointwise
        self.tensor_names, self.number_names = tensor_names, number_names
        self.bounds: set[Bound] = set()

    def fill(
        self, array: Callable[[int], jax.Array], numbers: Mapping[str, jax.Array]
    ) -> list[object]:
        """The arguments, given the array of each tensor, by its index, and one for each kind of number."""
        return [self._filled(entry, array, numbers) for entry in self.entries]

    def at(self, position: int) -> Template:
        """The template of a call over this position of the lists alone."""
        entries = [e[position : position + 1] if isinstance(e, list) else e for e in self.entries]
        part = Template(entries, self.tensor_names, self.number_names, self.pointwise)
        part.bounds = self.bounds
        return part

    def _filled(
        self, entry: object, array: Callable[[int], jax.Array], numbers: Mapping[str, jax.Array]
    ) -> object:
        if isinstance(entry, Slot):
            return array(entry.index)
        if isinstance(entry, list):
            return [self._filled(item, array, numbers) for item in entry]
        if not isinstance(entry, NumberSlot):
            return entry
        slot = entry

        def note_cast(dtype: np.dtype) -> None:
            limit = limits(dtype)
            if limit is not None:
                self.bounds.add((slot.position, *limit))

        value = numbers[slot.kind][slot.index]
        number = Number(value, slot.kind, slot.dtype, note_cast if slot.scalar else None)
        if slot.dtype is None or self.pointwise:
            return number
        return number.as_dtype(slot.dtype)


class _Slots:
    """Numbers the slots in the order in which `call.describe` found the tensors and numbers."""

    def __init__(self) -> None:
        self.tensors: list[str] = []
        self.numbers: dict[str, list[str]] = {"f": [], "i": [], "c": []}

    def entry(self, kind: int, a: Any, name: str) -> object:
        """The entry of one argument."""
        if a is None:
            return None
        if kind == TENSOR and isinstance(a, Tensor):
            if a.device.type == "cpu" and a.dim() == 0:
                return self._number(name, kind_of_tensor(a), to_numpy(a.dtype), scalar=False)
            self.tensors.append(name)
            return Slot(len(self.tensors) - 1)
        if kind <= NUMBER:
            letter = number_kind(type(a))
            return self._number(name, letter, None, scalar=kind == NUMBER) if letter else a
        if kind == FLAG:
            return self._number(name, "i", None, scalar=False)
        if kind in (TENSORS, NUMBERS):
            item_kind = TENSOR if kind == TENSORS else NUMBER
            return [self.entry(item_kind, item, f"{name}[{i}]") for i, item in enumerate(a)]
        return a

    def _number(self, name: str, kind: str, dtype: np.dtype | None, scalar: bool) -> NumberSlot:
        position = sum(map(len, self.numbers.values()))
        self.numbers[kind].append(name)
        return NumberSlot(kind, len(self.numbers[kind]) - 1, position, dtype, scalar)


def template_of(
    args: Sequence[Any],
    kinds: Sequence[int],
    names: Sequence[str],
    given: int,
    omitted: Iterable[int] = (),
    pointwise: bool = False,
) -> Template:
    """The template of a call.

    Args:
        args: all arguments.
        kinds: the kind of each.
        names: the name of each.
        given: how many were passed. An argument left at its default is static: the key shows that it was left out.
        omitted: arguments that the lowering does not take (generators, `out=`).
        pointwise: as for `Template`.
    """
    slots = _Slots()
    entries = [
        slots.entry(kind if i < given else STATIC, a, name)
        for i, (kind, a, name) in enumerate(zip(kinds, args, names, strict=True))
    ]
    left_out = set(omitted)
    taken = [entry for i, entry in enumerate(entries) if i not in left_out]
    return Template(taken, slots.tensors, slots.numbers, pointwise)
