"""Which line and which module asked for each eager program, as it was launched.

In the user's thread the line is on the stack. torch's backward pass runs in a thread without Python frames: the node
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
from typing import Any, NamedTuple

from ... import _torch_private as private
from ...capture.scopes import Scopes, followed
from ...dispatch.site import is_user_file
from ..hlo.source import is_cell_file

Site = tuple[CodeType, int]  # a code object and the offset of its instruction


class Launch(NamedTuple):
    """One call of an eager program.

    Attributes:
        program: the dispatch's `Program`.
        site: the innermost line of a cell, or else of the user's code; None where there is none.
        backward: whether torch's backward pass asked for it.
        scope: names of the modules and `record_function`s around it.
    """

    program: Any
    site: Site | None
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
        self._sites: list[tuple[Site | None, tuple[str, ...]]] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Hold while modules tell their names."""
        with followed() as scopes:
            self._scopes = scopes
            try:
                yield
            finally:
                self._scopes = None

    def launched(self, program: Any) -> None:
        """A program is about to be called in this thread."""
        node = private.current_autograd_node()
        if node is not None:
            self.found.append(self._of_backward(program, private.sequence_number(node)))
            return
        own = threading.get_ident() == self._thread
        place = _site(sys._getframe(1))
        if place is None and not own:  # a backward pass, between two nodes
            self.found.append(Launch(program, self._waiting(), True, ()))
            return
        scope = self._scopes.path if own and self._scopes is not None else ()
        self.found.append(Launch(program, place, False, scope))
        if own:
            number = private.next_sequence_number() - 1
            if not self._numbers or number > self._numbers[-1]:
                self._numbers.append(number)
                self._sites.append((place, scope))

    def _of_backward(self, program: Any, number: int) -> Launch:
        if self._numbers and self._numbers[0] <= number <= self._numbers[-1]:
            # A view's node launched nothing, and is noted under what reads the view.
            place, scope = self._sites[bisect_left(self._numbers, number)]
            return Launch(program, place, True, scope)
        return Launch(program, self._waiting(), True, ())

    def _waiting(self) -> Site | None:
        """Where the recorded thread is."""
        frame = sys._current_frames().get(self._thread)
        return None if frame is None else _site(frame)


def _site(frame: FrameType | None) -> Site | None:
    """The innermost line of a cell, or else of the user's code."""
    users: Site | None = None
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if is_user_file(name):
            if is_cell_file(name):
                return code, frame.f_lasti
            users = users or (code, frame.f_lasti)
        frame = frame.f_back
    return users
