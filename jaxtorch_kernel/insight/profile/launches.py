"""Records the source lines and the module behind each program launch.

In the user's thread, the lines are on the stack. torch's backward pass runs in a thread without Python frames. But each
autograd node has a sequence number, and forward launches are recorded under the numbers of their nodes. So a backward
launch is attributed to the forward line whose gradient it computes. If its node is unknown (the sum of two gradients, a
node created before the recording), it is attributed to the line that waits for the backward pass.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import NamedTuple

from ...base import torch_private as private
from ...capture.scopes import Scopes, followed
from ...programs.site import is_user_file
from ...programs.stats import ProgramRecord
from ..hlo.source import PROFILER

Site = tuple[CodeType, int]  # a code object and the offset of its instruction
_REMEMBERED = 50_000  # forward launches

Sites = tuple[Site, ...]  # the lines of user code on a stack, the innermost first


class Launch(NamedTuple):
    """One call of a program.

    Attributes:
        record: the record of the program.
        sites: the line it does work for, and the callers of this line; for a backward launch, those of the forward
            pass.
        waiting: for a backward launch, the lines that wait for the backward pass.
        backward: whether a backward pass launched it.
        scope: names of the enclosing modules and `record_function`s.
    """

    record: ProgramRecord
    sites: Sites
    waiting: Sites
    backward: bool
    scope: tuple[str, ...]


class Launches:
    """Collects the launches of one recording."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self._thread = threading.get_ident()
        self._scopes: Scopes | None = None
        # The forward launches in order: the sequence numbers of their autograd nodes, and their locations.
        self._numbers: list[int] = []
        self._sites: list[tuple[Sites, tuple[str, ...]]] = []

    @contextmanager
    def track_scopes(self) -> Iterator[None]:
        """Track module names during the block."""
        with followed() as scopes:
            self._scopes = scopes
            try:
                yield
            finally:
                self._scopes = None

    def add(self, record: ProgramRecord, keep: bool = True) -> None:
        """Record a launch. The launching thread calls this before each program call.

        Without `keep`, the launch is only remembered as the origin of a backward launch that may follow.
        """
        node = private.current_autograd_node()
        if node is not None:
            if keep:
                self.launches.append(self._of_backward(record, private.sequence_number(node)))
            return
        in_user_thread = threading.get_ident() == self._thread
        if not (keep or in_user_thread):
            return
        sites = _sites(sys._getframe(1))
        if not sites and not in_user_thread:  # a backward pass, between two nodes
            self.launches.append(self._without_line(record))
            return
        scope = self._scopes.path if in_user_thread and self._scopes is not None else ()
        if keep:
            self.launches.append(Launch(record, sites, (), False, scope))
        if in_user_thread:
            self._remember(private.next_sequence_number() - 1, sites, scope)

    def _remember(self, number: int, sites: Sites, scope: tuple[str, ...]) -> None:
        if self._numbers and number <= self._numbers[-1]:
            return
        self._numbers.append(number)
        self._sites.append((sites, scope))
        if (
            len(self._numbers) > 2 * _REMEMBERED
        ):  # of a long run; what is old has had its backward pass
            del self._numbers[:_REMEMBERED], self._sites[:_REMEMBERED]

    def _of_backward(self, record: ProgramRecord, number: int) -> Launch:
        if self._numbers and self._numbers[0] <= number <= self._numbers[-1]:
            # The forward operator of this node may have launched nothing (a view). Use the location of the next launch.
            sites, scope = self._sites[bisect_left(self._numbers, number)]
            return Launch(record, sites, self._waiting(), True, scope)
        return self._without_line(record)

    def _without_line(self, record: ProgramRecord) -> Launch:
        """A backward launch without a known forward line, attributed to the waiting line."""
        return Launch(record, self._waiting(), (), True, ())

    def _waiting(self) -> Sites:
        """The current lines of the recorded thread."""
        return _sites(sys._current_frames().get(self._thread))


def _sites(frame: FrameType | None) -> Sites:
    """The lines of user code from this frame outwards, up to the profiled function."""
    sites: list[Site] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == PROFILER and sites:
            break
        if is_user_file(code.co_filename):
            sites.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(sites)
