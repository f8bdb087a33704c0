"""Windows as paths in a tree.

A window is a sequence of recorded calls. Each call is a step from one `Node` to the next, found by one dictionary
lookup: the program, the indices of its operands, and the offsets of its views, unless these vary between windows. The
program includes everything else that the call depends on: operator, dtypes, geometry, static arguments, options. So
two windows that end at the same node compute the same function of their inputs, numbers and changing offsets, and the
node keeps what is known about it.

Values have indices within their window. A result has the number of results before it; an input has `~n`, where n is
the number of inputs before it. Everything that a window records has its position from the node, so a call that was
interrupted while it was recorded leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..dispatch.operands import Offsets
from ..dispatch.program import Program

if TYPE_CHECKING:
    from .plan import Plans

# The program, the index of each buffer that it takes (of its random key first), and the offsets of its views.
Step = tuple[Any, ...]


class Recorded(NamedTuple):
    """One call of a window.

    Attributes:
        program: what runs.
        operands: the index of each value that it takes.
        offsets: those of its views that take starts; None if each window has its own.
        view: how many calls before it have such views.
        first: the index of its first result.
        number: how many numbers were recorded before its own.
    """

    program: Program
    operands: tuple[int, ...]
    offsets: Offsets | None
    view: int
    first: int
    number: int


class Node:
    """A sequence of calls since the start of a window.

    Attributes:
        next: the nodes after one more call.
        parent: the sequence without its last call; None for an empty one.
        call: the last call.
        results: how many results the sequence has.
        inputs: how many arrays it takes from outside.
        numbers: how many numbers it takes.
        views: how many of its calls have views that take starts.
        calls: how many calls it has.
        nbytes: the size of all results.
        plans: the compiled form; None before a window has ended here.
    """

    __slots__ = (
        "call",
        "calls",
        "inputs",
        "nbytes",
        "next",
        "numbers",
        "parent",
        "plans",
        "results",
        "views",
    )

    def __init__(self, parent: Node | None = None, call: Recorded | None = None):
        self.next: dict[Step, Node] = {}
        self.parent, self.call = parent, call
        self.plans: Plans | None = None
        if parent is None or call is None:
            self.results = self.inputs = self.numbers = self.views = self.calls = self.nbytes = 0
            return
        specs = call.program.result_specs()
        self.results = parent.results + len(specs) + call.program.lowering.random  # the next key
        self.inputs = max([parent.inputs, *(~i + 1 for i in call.operands)])
        self.numbers = parent.numbers + call.program.operands.number_count
        self.views = parent.views + bool(call.program.operands.views)
        self.calls = parent.calls + 1
        self.nbytes = parent.nbytes + sum(spec.nbytes for spec in specs)

    def extend(self, step: Step) -> Node:
        """The node after one more call; made at its first occurrence."""
        program: Program = step[0]
        count = len(program.operands.unique) + program.lowering.random
        offsets = step[count + 1] if len(step) > count + 1 else None
        call = Recorded(
            program, step[1 : count + 1], offsets, self.views, self.results, self.numbers
        )
        return self.next.setdefault(step, Node(self, call))

    def path(self) -> list[Recorded]:
        """The calls of the sequence."""
        calls = []
        node: Node | None = self
        while node is not None and node.call is not None:
            calls.append(node.call)
            node = node.parent
        return calls[::-1]
