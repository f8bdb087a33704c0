"""Which windows are compiled, where windows are cut, and when recording pauses.

A window runs call by call at its first sighting. At its second it is queued, and a thread compiles it while the loop
continues. So the first step is never slower than without deferred execution, and code that does not repeat is never
compiled.

A plan serves every subset of its results. After two windows that needed others, or in which numbers differed that it
takes as one, another is compiled that serves these too.

A window ends where a value is read, an optimizer has stepped, a captured function is called, or a notebook cell ends.
Code without any of these ends its windows at `MOST_CALLS` calls, wherever that is. If the first call of such a window
occurred again from the same stack, the code is a loop: from then on its windows end there.

Recording pauses when it has cost more than it gained: windows do not repeat (a new shape at each step), or are short (a
value is read after each call). It is tried again after a number of optimizer steps or notebook cells that doubles each
time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..dispatch.numbers import KindedNumber, Scalar
from ..programs.stats import Site
from .equal_numbers import EqualNumbers
from .node import Node
from .plan import Plan, Plans
from .worker import Worker

if TYPE_CHECKING:
    from .window import Stack, Window

# A window of fewer calls is not worth a program.
LEAST_CALLS = 4
# Recording a window costs about what a program of this many calls gains.
_COST = 8
# Recording pauses when it has lost this much: after three windows in a row that gain nothing. What long windows gained
# before pays for short ones (a training step that then reads some values), up to eight of them.
_MOST_LOSS, _MOST_CREDIT = 3 * _COST, 5 * _COST
_UNION_AFTER = 2
# After so many programs in which equal numbers were one operand, and then were not equal, each has an operand.
_MOST_SPLITS = 3
# The most stacks that one window looks at: each takes a few microseconds.
_MOST_COMPARISONS = 16

log = logging.getLogger(__name__)


class Policy:
    """The decisions, from what was seen.

    Args:
        pause: stops recording.

    Attributes:
        sightings: how often a window must be seen before it is compiled.
        background: whether a thread compiles; otherwise the flush does (tests).
        pauses: whether recording may pause.
        worker: the thread that compiles.
        cuts_loops: whether a window has been full, so that the next ones may have to end where a loop repeats.
    """

    def __init__(self, pause: Callable[[], None]):
        self.sightings = 2
        self.background = self.pauses = True
        self._pause = pause
        self._cuts: set[Stack] = set()
        self.cuts_loops = False
        self._balance = 0
        self.worker = Worker()

    def restart(self) -> None:
        """Forget what recording has cost and gained so far."""
        self._balance = 0

    # -- plans -----------------------------------------------------------------------------------------------------

    def plan_for(
        self,
        node: Node,
        live: Sequence[int],
        numbers: Sequence[KindedNumber],
        site: Callable[[], Site | None],
    ) -> tuple[Plan, list[Scalar]] | None:
        """The program for a window that is about to run, and the numbers for it; None to run it call by call.

        Args:
            node: what the window computes.
            live: the indices of the results that it has to return.
            numbers: those of its calls.
            site: gives the line of its first call.
        """
        plans = node.plans
        if plans is None:
            plans = node.plans = Plans()
        plans.sightings += 1
        if node.calls < LEAST_CALLS or not live:
            self._note(0)
            return None
        found = plans.find(live, numbers)
        if found is None and plans.sightings >= self.sightings:
            found = self._compile(node, plans, live, numbers, site())
        self._note(node.calls if found is not None or plans.sightings > 1 else 0)
        return found

    def _compile(
        self,
        node: Node,
        plans: Plans,
        live: Sequence[int],
        numbers: Sequence[KindedNumber],
        site: Site | None,
    ) -> tuple[Plan, list[Scalar]] | None:
        wanted = frozenset(live)
        if plans.compiled:
            plans.misses += 1
            if plans.misses < _UNION_AFTER:
                return None
            wanted = wanted.union(*(plan.live for plan in plans.compiled))
        if plans.wanted is not None:
            return None  # one is being compiled
        plans.wanted = wanted
        plan = Plan(node, sorted(wanted), _equal(node, plans, live, numbers), site)
        if not self.background:
            self._finish(plans, plan)
            return plans.find(live, numbers)
        self.worker.submit(lambda: self._finish(plans, plan))
        return None

    def _finish(self, plans: Plans, plan: Plan) -> None:
        try:
            plan.compile()
        except Exception:
            log.warning(
                "deferred calls run one by one: their program failed to compile", exc_info=True
            )
            return  # `wanted` stays set: it is not tried again
        # Its groups of equal numbers are not larger than theirs, so it runs whenever they could.
        plans.compiled = [p for p in plans.compiled if not plan.returns(p.live)] + [plan]
        plans.misses, plans.wanted = 0, None

    # -- cuts ------------------------------------------------------------------------------------------------------

    def repeats(self, window: Window, stack: Stack) -> bool:
        """Whether a window ends before a call of its first program, made from this stack."""
        window.comparisons += 1
        window.repeated = stack == window.stack
        if window.repeated and stack in self._cuts:
            return True
        if window.repeated or window.comparisons >= _MOST_COMPARISONS:
            window.leader = None  # nothing more to learn
        return False

    def note_full(self, window: Window) -> None:
        """Note a window that grew to its limit."""
        self.cuts_loops = True
        if window.repeated:
            self._cuts.add(window.stack)

    # -- pauses ----------------------------------------------------------------------------------------------------

    def _note(self, gain: int) -> None:
        """Note a window, with the number of its calls if it runs as one program, or is about to."""
        self._balance = min(self._balance + gain - _COST, _MOST_CREDIT)
        if self.pauses and self._balance <= -_MOST_LOSS:
            self._balance = 0
            self._pause()


def _equal(
    node: Node, plans: Plans, live: Sequence[int], numbers: Sequence[KindedNumber]
) -> EqualNumbers:
    """Which numbers are one operand of the next plan of these."""
    if not plans.compiled:
        return EqualNumbers.of(numbers, node.path())
    latest = plans.compiled[-1]
    if latest.returns(live):
        plans.splits += 1
    return (
        latest.numbers.split(numbers) if plans.splits < _MOST_SPLITS else EqualNumbers.none(numbers)
    )
