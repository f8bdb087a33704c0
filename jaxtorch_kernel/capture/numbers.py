"""Python numbers among the arguments: static at first, operands once they vary.

A number is part of the key until a call passes a different value for it. From then on the code gets a `HostNumber`
(`dependencies/host_number.py`), so that a number that changes at every call causes two traces, not one per call, as
`torch.compile` does for sizes. If the code needs its value (`range(n)`, `n in table`), the number is static again. A
bool is always static.
"""

from __future__ import annotations

from collections.abc import Collection

from ..base.torch_private import pytree
from .errors import CaptureError


class Varying:
    """What the key of a call has in place of a number that varies: its type."""

    def __init__(self, kind: type):
        self.kind = kind


_VARYING = {kind: Varying(kind) for kind in (int, float)}


class Numbers:
    """Which numbers of one function vary, for each structure of its arguments."""

    def __init__(self) -> None:
        # By the structure of the arguments: the first value of each number, by its index among the leaves; the
        # indices of numbers that vary; the indices of those that did until the code needed their values.
        self._first: dict[pytree.TreeSpec, dict[int, int | float]] = {}
        self._varying: dict[pytree.TreeSpec, set[int]] = {}
        self._fixed: dict[pytree.TreeSpec, set[int]] = {}

    def substitute(
        self, structure: pytree.TreeSpec, leaves: list[object], static: set[int]
    ) -> set[int]:
        """Replace the numbers that vary by their types; returns their indices. `static`: those that never vary."""
        numbers = {
            i: leaf
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, int | float) and type(leaf) in (int, float) and i not in static
        }
        if not numbers:
            return set()
        first = self._first.setdefault(structure, dict(numbers))
        fixed = self._fixed.get(structure, set())
        varying = self._varying.setdefault(structure, set())
        for i, value in numbers.items():
            old = first.setdefault(i, value)
            if i not in fixed and (type(old) is not type(value) or repr(old) != repr(value)):
                varying.add(i)
        operands = varying & numbers.keys()
        for i in operands:
            leaves[i] = _VARYING[type(numbers[i])]
        return operands

    def fix(self, structure: pytree.TreeSpec, indices: Collection[int] | None = None) -> bool:
        """Make numbers static again, by default all; returns whether one varied."""
        varying = self._varying.setdefault(structure, set())
        fixed = varying if indices is None else varying.intersection(indices)
        self._fixed.setdefault(structure, set()).update(fixed)
        self._varying[structure] = varying - fixed
        return bool(fixed)


class NeedsNumber(CaptureError):
    """The code needs the value of a number that varies."""

    def __init__(self) -> None:
        super().__init__("the code asked for the value of a number", "Name it in static_argnames.")
