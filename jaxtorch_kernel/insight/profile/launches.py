"""Which lines and which module asked for each program, as it was launched.

In the user's thread the lines are on the stack. torch's backward pass runs in a thread without Python frames: the node
that it runs has torch's number, and the launches of the forward pass were noted under the numbers of theirs, so that a
kernel of the backward pass belongs to the line of the forward pass that it is the gradient of. What belongs to no such
node (the sum of two gradients, a node that was made before) belongs to the line that waits for the backward pass.
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
from ...programs.stats import Compiled
from ..hlo.source import PROFILER

Site = tuple[CodeType, int]  # a code object and the offset of its instruction
Sites = tuple[Site, ...]  # the lines of the user's on a stack, the innermost first


class Launch(NamedTuple):
    """One call of a program.

    Attributes:
        record: the program's.
        sites: the lines whose work it is, with those that called them; of a kernel of torch's backward pass, those
            of the forward pass.
        waiting: the lines that wait for the backward pass that asked for it.
        backward: whether one did.
        scope: names of the modules and `record_function`s around it.
    """

    record: Compiled
    sites: Sites
    waiting: Sites
    backward: bool
    scope: tuple[str, ...]


class Launches:
    """The launches of one recording, as they come."""

    def __init__(self) -> None:
        self.found: list[Launch] = []
        self._thread = threading.get_ident()
        self._scopes: Scopes | None = None
        # Of the forward pass, in order: the number of the node that a launch is part of, and where it was.
        self._numbers: list[int] = []
        self._sites: list[tuple[Sites, tuple[str, ...]]] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hold while modules tell their names."""
        with followed() as scopes:
            self._scopes = scopes
            try:
                yield
            finally:
                self._scopes = None

    def launched(self, record: Compiled) -> None:
        """A program is about to be called in this thread."""
        node = private.current_autograd_node()
        if node is not None:
            self.found.append(self._of_backward(record, private.sequence_number(node)))
            return
        own = threading.get_ident() == self._thread
        sites = _sites(sys._getframe(1))
        if not sites and not own:  # a backward pass, between two nodes
            self.found.append(self._of_nobody(record))
            return
        scope = self._scopes.path if own and self._scopes is not None else ()
        self.found.append(Launch(record, sites, (), False, scope))
        if own:
            number = private.next_sequence_number() - 1
            if not self._numbers or number > self._numbers[-1]:
                self._numbers.append(number)
                self._sites.append((sites, scope))

    def _of_backward(self, record: Compiled, number: int) -> Launch:
        if self._numbers and self._numbers[0] <= number <= self._numbers[-1]:
            # A view's node launched nothing, and is noted under what reads the view.
            sites, scope = self._sites[bisect_left(self._numbers, number)]
            return Launch(record, sites, self._waiting(), True, scope)
        return self._of_nobody(record)

    def _of_nobody(self, record: Compiled) -> Launch:
        """The gradient of nothing that is known: it belongs to the line that waits."""
        return Launch(record, self._waiting(), (), True, ())

    def _waiting(self) -> Sites:
        """Where the recorded thread is."""
        return _sites(sys._current_frames().get(self._thread))


def _sites(frame: FrameType | None) -> Sites:
    """The lines of the user's from here outwards, as far as what is profiled."""
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename == PROFILER and found:
            break
        if is_user_file(code.co_filename):
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
