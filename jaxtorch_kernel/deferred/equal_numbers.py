"""Which numbers of a window are equal, so that its program takes them once.

An optimizer's program runs for a dozen parameters at a time, each time with the same learning rate and betas, and the
25 normalizations of a GPT have the same epsilon. If each had an operand of its own, XLA would compile a kernel of its
own for each: 208 different ones for a step of that GPT, and 95 if equal numbers are one operand.

Numbers are one operand if they are the same argument of calls of the same operator, and have the same value when the
program is compiled. So a window may come in which they no longer agree, as when a scheduler gives two groups of
parameters different rates. Another program is compiled for it, which separates those too (`split`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dispatch.numbers import KindedNumber, Scalar, equals_only_itself
from .node import Recorded


class EqualNumbers:
    """The numbers of a window in groups of equal ones.

    Args:
        numbers: of one window.
        labels: for each number, what else must be the same for two numbers of a group.

    Attributes:
        group_of: for each number, the index of its group.
        kinds: the kind of each group.
    """

    def __init__(self, numbers: Sequence[KindedNumber], labels: Iterable[object]):
        groups: dict[object, int] = {}
        self.group_of: list[int] = []
        self._first: list[int] = []
        self._repeated: list[tuple[int, int]] = []  # every other number, and its group
        for i, (number, label) in enumerate(zip(numbers, labels, strict=True)):
            group = groups.setdefault((_identity(number, i), label), len(groups))
            self.group_of.append(group)
            if group == len(self._first):
                self._first.append(i)
            else:
                self._repeated.append((i, group))
        self.kinds = [numbers[i][0] for i in self._first]

    @classmethod
    def of(cls, numbers: Sequence[KindedNumber], path: Iterable[Recorded]) -> EqualNumbers:
        """The numbers that are equal in a window, whose calls are `path`."""
        return cls(
            numbers,
            [(c.program.name, n) for c in path for n in range(c.program.operands.number_count)],
        )

    def split(self, numbers: Sequence[KindedNumber]) -> EqualNumbers:
        """The same groups without numbers that differ in another window."""
        return EqualNumbers(numbers, self.group_of)

    @classmethod
    def none(cls, numbers: Sequence[KindedNumber]) -> EqualNumbers:
        """Each number for itself."""
        return cls(numbers, range(len(numbers)))

    def values(self, numbers: Sequence[KindedNumber]) -> list[Scalar] | None:
        """The value of each group in a window; None if two numbers of a group differ there."""
        all_values = [value for _, value in numbers]
        values = [all_values[i] for i in self._first]
        if [values[group] for group in self.group_of] != all_values:
            return None
        ambiguous = {g for g, v in enumerate(values) if not equals_only_itself(v)}  # 0.0 == -0.0
        for i, group in self._repeated:
            if group in ambiguous and repr(all_values[i]) != repr(values[group]):
                return None
        return values


def _identity(number: KindedNumber, position: int) -> object:
    """What two numbers that count as equal have in common: their value, if it has one form only."""
    return number if equals_only_itself(number[1]) else position
