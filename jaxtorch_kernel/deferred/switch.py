"""Switching deferred execution on and off, and the points where its windows end."""

from __future__ import annotations

from ..base.options import config
from ..dispatch import deferring
from ..storage import pending
from .plan import FUNCTION
from .policy import Policy
from .recorder import Recorder


class Switch:
    """Whether calls are deferred in this process.

    Attributes:
        on: whether they are deferred now: it is requested, and not paused.
        requested: whether the user asked for it.
    """

    def __init__(self) -> None:
        self.requested = False
        self.policy = Policy(self._pause)
        self.recorder = Recorder(self.policy)
        FUNCTION.caches.add(self.recorder)
        self._rest = 1  # boundaries to wait after the next pause
        self._waiting = 0  # boundaries until recording resumes

    @property
    def on(self) -> bool:
        """Whether calls are recorded now."""
        return deferring.recorder is not None

    def follow_options(self) -> None:
        """Follow `config.execution` from now on."""
        config.on_execution = self._set_option
        if config.execution != "immediate":
            self._set_option(config.execution)

    def _set_option(self, execution: str) -> None:
        self.set(execution == "deferred")

    def set(self, requested: bool) -> None:
        """Request deferred or immediate execution."""
        self.requested = requested
        self._rest, self._waiting = 1, 0
        self.policy.restart()
        pending.flush = self.recorder.flush
        if requested:
            deferring.recorder = self.recorder
        else:
            deferring.recorder = None
            self.recorder.flush()

    def boundary(self) -> None:
        """End the window: an optimizer has stepped, or a notebook cell has ended."""
        if not self.requested:
            return
        self.recorder.flush()
        if self._waiting:
            self._waiting -= 1
            if not self._waiting:
                deferring.recorder = self.recorder

    def _pause(self) -> None:
        deferring.recorder = None
        self._waiting, self._rest = self._rest, self._rest * 2


switch = Switch()
