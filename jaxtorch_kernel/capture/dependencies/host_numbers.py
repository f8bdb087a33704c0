"""The numbers of one trace that vary, and what each run does with them. `host_number.py` has the mechanism."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import torch

from ...base.torch_private import pytree
from ...storage.buffer import Buffer, buffer_of
from ..numbers import NeedsNumber
from .computed import Assigned, Computed, Operand
from .fetch import fetched
from .guard import Check
from .host_number import Formula, HostNumber, Term, holds_host_number, replaced
from .slots import Slot

Tensor = torch.Tensor


class _Open(threading.local):
    """The numbers of the trace that runs in this thread."""

    numbers: HostNumbers | None = None


_open = _Open()


def host_numbers() -> HostNumbers | None:
    """The numbers of the trace that runs in this thread, if any vary."""
    return _open.numbers


class Root:
    """A slot whose number varies, or whose numbers, if it holds a tuple of them (`betas`).

    Attributes:
        slot: the slot.
        before: what it holds before the trace.
        substitute: what the code gets.
        numbers: the HostNumbers in that.
        after: what it holds after the trace.
    """

    def __init__(self, slot: Slot, trace: HostNumbers):
        self.slot, self.before = slot, slot.get()
        self.substitute: HostNumber | tuple[HostNumber, ...]
        if isinstance(self.before, tuple):
            numbers = [
                HostNumber(trace, number, Formula(self._element, (i,)))
                for i, number in enumerate(self.before)
            ]
            self.substitute = tuple(numbers)
        else:
            assert isinstance(self.before, int | float)  # `is_numeric`
            numbers = [HostNumber(trace, self.before, Formula(slot.get, ()))]
            self.substitute = numbers[0]
        self.numbers = numbers
        self.after: object = self.before

    def _element(self, index: int) -> object:
        value = self.slot.get()
        return value[index] if isinstance(value, tuple) else value

    def restore(self) -> None:
        """Give the slot a Python number again: that of the trace, if the code assigned one."""
        value = self.slot.get()
        if value is self.substitute:
            self.slot.set(self.before)
        elif type(value) is HostNumber:
            self.slot.set(value.value)
        self.after = self.slot.get()

    def undo(self) -> None:
        """Give the slot what it held before the trace, unless another thread has assigned it."""
        value = self.slot.get()
        if holds_host_number(value) or value is self.after:
            self.slot.set(self.before)

    def check(self) -> Check:
        """A check that the slot holds numbers of the same types."""
        kinds = _kinds(self.before)

        def holds() -> bool:
            return fetched(self.slot.owner) is not None and _kinds(self.slot.get()) == kinds

        return Check(self.slot.path, "is no longer a number", holds)


def _kinds(value: object) -> list[type]:
    return [type(value), *map(type, value)] if isinstance(value, tuple) else [type(value)]


class HostNumbers:
    """The numbers of one trace that vary.

    Args:
        slots: the slots with numbers that vary.
        leaves: the arguments of the call, among which there may be numbers that vary.

    Attributes:
        checks: what the program requires of the numbers.
        required: the numbers whose very values the program requires: paths of slots, indices of arguments.
    """

    def __init__(self, slots: Sequence[Slot], leaves: Sequence[object]):
        self._leaves: Sequence[object] = leaves
        self._thread: int | None = threading.get_ident()
        self._roots = [Root(slot, self) for slot in slots]
        self._arguments: dict[int, HostNumber] = {}
        self._current: dict[int, object] = {}
        self._operands: dict[tuple[int, torch.dtype], Operand] = {}
        self._alive: list[HostNumber] = []  # the operands are found by their ids
        self._formulas: list[Formula] = []
        self._assigned: list[Assigned] = []
        self._returned: list[Computed] = []
        self.checks: list[Check] = []
        self.required: set[str | int] = set()
        self.is_fresh = True  # no run has followed the trace
        self._is_claimed = False
        self._add_type_checks()

    def claim(self) -> HostNumbers | None:
        """Itself for the recorder of the trace; None for one that the code opens within it."""
        if self._is_claimed:
            return None
        self._is_claimed = True
        return self

    def _add_type_checks(self) -> None:
        # First, so that no formula is evaluated with something else than numbers.
        self.checks += [root.check() for root in self._roots]

    def is_open(self) -> bool:
        """Whether the trace runs, in this thread."""
        return self._thread == threading.get_ident()

    def argument(self, index: int) -> HostNumber:
        """The number among the arguments with this index."""
        if index not in self._arguments:
            value = self._leaves[index]
            assert isinstance(value, int | float)  # `Numbers.substitute`
            self._current[index] = value
            formula = Formula(lambda: self._current[index], ())
            self._arguments[index] = HostNumber(self, value, formula)
        return self._arguments[index]

    def set_arguments(self, leaves: Sequence[object]) -> None:
        """Before a call, take the numbers among its arguments."""
        self._current = {i: leaves[i] for i in self._arguments}

    def named_operands(self, arguments: Sequence[str]) -> Iterator[tuple[str, Buffer]]:
        """The buffers of the operands, with the path of a number that each is computed from.

        Args:
            arguments: the names of the arguments.
        """
        for operand in self._operands.values():
            sources = [
                arguments[s] if isinstance(s, int) else s for s in self._sources(operand.formula)
            ]
            yield min(sources, default="number"), buffer_of(operand.tensor)

    def _sources(self, formula: Formula) -> set[str | int]:
        """The numbers that a formula is computed from: paths of slots, indices of arguments."""
        known: dict[int, str | int] = {id(n.formula): i for i, n in self._arguments.items()}
        for root in self._roots:
            known |= {id(number.formula): root.slot.path for number in root.numbers}
        return _sources(formula, known)

    def add(self, formula: Formula) -> None:
        """Require that a formula can be computed at each run, even if nothing uses it: the code may catch its error."""
        self._formulas.append(formula)

    def operand(self, number: HostNumber, dtype: torch.dtype) -> Tensor:
        """The operand for a number."""
        key = id(number), dtype
        if key not in self._operands:
            self._alive.append(number)
            self._operands[key] = Operand(number.formula, number.value, dtype)
        return self._operands[key].tensor

    def require(self, formula: Formula, value: object, is_outcome: bool = False) -> None:
        """Require that a formula has this value at each run. `is_outcome`: it is the result of a comparison."""
        text = repr(value)  # by its digits: nan is nan, and 0.0 is not -0.0
        sources = self._sources(formula)
        path = min((s for s in sources if isinstance(s, str)), default="an argument")
        if not is_outcome:
            self.required |= sources

        def holds() -> bool:
            try:
                return repr(formula.value({})) == text
            except Exception:  # of a branch that the code does not take now; or this is no number
                return False

        self.checks.append(Check(path, "has a different value", holds))

    def assign(self, slot: Slot, number: HostNumber) -> Assigned:
        """Let each run assign the current value of a number to a slot."""
        assigned = Assigned(slot, number.formula, number.value)
        self._assigned.append(assigned)
        return assigned

    def returned(self, result: object) -> object:
        """What the code returns, with a `Computed` in place of each HostNumber.

        Raises:
            NeedsNumber: if an object that the code created holds one.
        """

        def computed(number: HostNumber) -> Computed:
            self._returned.append(Computed(number.formula, number.value))
            return self._returned[-1]

        result = pytree.tree_map_only(HostNumber, computed, result)
        if any(map(holds_host_number, pytree.tree_leaves(result))):
            raise NeedsNumber()
        return result

    def is_root(self, slot: Slot) -> bool:
        """Whether the slot is one of those whose numbers vary."""
        return any(slot.identity == root.slot.identity for root in self._roots)

    def evaluate(self) -> bool:
        """Evaluate all formulas, before a run and before any slot is assigned.

        Returns:
            Whether each gives a number of the same type as in the trace.
        """
        known: dict[int, Term] = {}
        parts: list[Computed] = [*self._operands.values(), *self._assigned, *self._returned]
        try:
            for formula in self._formulas:
                formula.value(known)
            for part in parts:
                part.latest = part.formula.value(known)
        except Exception:  # the code would fail, too, or has a branch for these numbers
            return False
        return all(type(part.latest) is part.kind for part in parts)

    def refresh(self) -> None:
        """Before a run, give the program the latest values; those of the first run are those of the trace."""
        arrays: dict[Hashable, jax.Array] = {}
        for operand in () if self.is_fresh else self._operands.values():
            operand.refresh(arrays)
        self.is_fresh = False

    @contextmanager
    def substituted(self) -> Iterator[None]:
        """Context of the trace. At its end every slot has a Python number again."""
        self._substitute()
        try:
            _open.numbers = self
            with replaced.applied():
                yield
        except BaseException:
            self.restore()
            raise
        finally:
            _open.numbers = None
            self._thread, self._leaves = None, ()
        for root in self._roots:
            root.restore()
        for assigned in self._assigned:
            if type(assigned.slot.get()) is HostNumber:
                assigned()

    def _substitute(self) -> None:
        for root in self._roots:
            root.slot.set(root.substitute)

    def start_over(self) -> None:
        """Forget a trace that has failed, for another one with the same numbers."""
        for part in (
            self._operands,
            self._alive,
            self._formulas,
            self._assigned,
            self._returned,
            self.checks,
            self.required,
        ):
            part.clear()
        self._is_claimed = False
        self._add_type_checks()
        self._substitute()

    def restore(self) -> None:
        """Give the slots the numbers from before the trace."""
        self.is_fresh = False
        for root in self._roots:
            root.undo()

    def finish(self) -> list[Callable[[], None]]:
        """After the code has run, find the slots that it assigned. Returns what each run repeats.

        Raises:
            NeedsNumber: if it assigned a container of numbers.
        """
        for root in self._roots:
            value = root.slot.get()
            if value is root.substitute:
                continue
            if type(value) is HostNumber:
                self.assign(root.slot, value)
            elif holds_host_number(value):
                raise NeedsNumber()
        self.checks.append(Check("a number", "makes a computation fail", self.evaluate))
        return list(self._assigned)


def _sources(formula: Formula, known: Mapping[int, str | int]) -> set[str | int]:
    sources: set[str | int] = set()
    seen: set[int] = set()
    formulas = [formula]
    while formulas:
        formula = formulas.pop()
        if id(formula) in known:
            sources.add(known[id(formula)])
        elif id(formula) not in seen:
            seen.add(id(formula))
            formulas += [part for part in formula.parts if isinstance(part, Formula)]
    return sources
