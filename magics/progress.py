"""Progress of long compilations and of reading a profile: one line with the current step and the elapsed time.

At the end, a terminal's line is removed. A notebook cannot remove one output of a cell alone, and an empty output would
be saved in its file. So a cell has at most one such output, which ends as a sentence that names the compiled programs.

`programs/compiling.py` reports when a thread starts to trace or compile. A watcher thread then polls the open phases
ten times a second. After half a second of uninterrupted compilation, it shows a line. The thread ends with the
compilation, so a session that compiles nothing has no such thread. The cell's own thread does no extra work and stays
interruptible: Ctrl-C stops tracing at once, and XLA when its current work is done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from jaxtorch.programs import compiling
from jaxtorch.programs.compiling import Phase, outermost_phase
from jaxtorch.widgets.hosts import host

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

PATIENCE = 0.5  # seconds of compilation before a line is shown
PAUSE = 0.3  # seconds without compilation after which the line is removed
POLL_INTERVAL = 0.1
OFF = "JAXTORCH_PROGRESS"  # an environment variable; the value 0 turns the progress line off

_STEPS = {"trace": "tracing", "lowering": "lowering", "XLA": "XLA", "TPU": "libtpu"}


class Sink(Protocol):
    """Where the progress line is shown."""

    def show(self, line: str) -> None:
        """Replace the line shown so far."""

    def clear(self, done: str) -> None:
        """Remove the line, or replace it by a sentence on the work that is done."""

    def settle(self) -> None:
        """Called when the cell has ended; a later line belongs to another cell."""


class Terminal:
    """The last line of a terminal."""

    def show(self, line: str) -> None:
        sys.__stderr__.write(f"\r\x1b[2K{line}")  # type: ignore[union-attr]  # it exists, because `sink` checked it
        sys.__stderr__.flush()  # type: ignore[union-attr]  # as above

    def clear(self, done: str) -> None:
        self.show("")

    def settle(self) -> None:
        pass


class Output:
    """An output of the running cell, one for all lines of the cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str) -> None:
        page = f'<div role="status" style="opacity:0.7;font-size:13px">{escape(line)}</div>'
        self._display({"text/plain": line, "text/html": page})

    def clear(self, done: str) -> None:
        self.show(done)

    def settle(self) -> None:
        self._handle = None

    def _display(self, data: dict[str, str]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


class Progress:
    """The progress line for a series of compilations, and the thread that writes it.

    Attributes:
        done: the phases that were seen in this cell, by their ids.
        seconds: the time of the series in this cell whose line was shown.
    """

    def __init__(self, sink: Sink):
        self.sink = sink
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._shown = False
        self._started: float | None = None  # when the series of compilations began, in this cell
        self.done: dict[int, Phase] = {}
        self.seconds = 0.0

    def begin(self) -> None:
        """Begin polling, because a compilation has started."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="jaxtorch-progress", daemon=True
                )
                self._thread.start()

    def settle(self) -> None:
        """End the line at the end of the cell. Some front ends cannot update the output of an earlier cell."""
        with self._lock:
            self._clear()
            self.sink.settle()
            self.done, self.seconds = {}, 0.0

    def _clear(self) -> None:
        if self._shown and self._started is not None:
            self._shown = False
            self.seconds += time.monotonic() - self._started
            self.sink.clear(summary(list(self.done.values()), self.seconds))
        self._started = (
            None  # the thread may live on into the next cell, which has a time of its own
        )

    def _poll(self, phase: Phase, now: float) -> None:
        with self._lock:
            if outermost_phase() is not phase:  # the cell may have ended and removed its line
                return
            self.done[id(phase)] = phase
            if self._started is None:
                self._started = now
            elapsed = now - self._started
            if elapsed > PATIENCE:
                self._shown = True
                self.sink.show(line_of(phase, len(self.done), elapsed))

    def _run(self) -> None:
        try:
            last_compiling = time.monotonic()
            while True:
                now = time.monotonic()
                phase = outermost_phase()
                if phase is not None:
                    last_compiling = now
                    self._poll(phase, now)
                if now - last_compiling > PAUSE:
                    return
                time.sleep(POLL_INTERVAL)
        finally:
            with self._lock:
                self._thread = None
                self._clear()


def line_of(phase: Phase, count: int, seconds: float) -> str:
    """
    Example:
        >>> line_of(Phase("step", "XLA"), 1, 12.34)
        'Compiling step: XLA, 12.3 s'
        >>> line_of(Phase("mm", "lowering"), 57, 3.0)
        'Compiling mm: lowering, 3.0 s for 57 programs and their parts so far'
        >>> line_of(Phase("part 2", "profile"), 1, 1.5)
        'Reading the profile, part 2: 1.5 s'
        >>> line_of(Phase("of step 20, 8.0 MB", "checkpoint"), 1, 1.5)
        'Writing the checkpoint of step 20, 8.0 MB: 1.5 s'
    """
    more = f" for {count} programs and their parts so far" if count > 3 else ""
    if phase.step == "profile":
        return f"Reading the profile, {phase.name}: {seconds:.1f} s"
    if phase.step == "checkpoint":
        return f"Writing the checkpoint {phase.name}: {seconds:.1f} s"
    return f"Compiling {phase.name}: {_STEPS[phase.step]}, {seconds:.1f} s{more}"


def summary(phases: list[Phase], seconds: float) -> str:
    """
    Example:
        >>> summary([Phase("step", "XLA")], 12.34)
        'Compiled step in 12.3 s.'
        >>> summary([Phase("mm", "lowering"), Phase("mm", "XLA"), Phase("add", "XLA"), Phase("exp", "XLA")], 3.0)
        'Compiled mm, add and 1 more in 3.0 s.'
        >>> summary([Phase("part 1", "profile")], 2.0)
        'Read the profile in 2.0 s.'
        >>> summary([Phase("of step 20, 8.0 MB", "checkpoint")], 2.0)
        'Wrote the checkpoint of step 20, 8.0 MB in 2.0 s.'
    """
    names = list(dict.fromkeys(phase.name for phase in phases if phase.step in _STEPS))
    written = [phase.name for phase in phases if phase.step == "checkpoint"]
    if not names and written:
        return f"Wrote the checkpoint {written[-1]} in {seconds:.1f} s."
    if not names:
        return f"Read the profile in {seconds:.1f} s."
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    what = f"{', '.join(names[:2])}{more}"
    if any(phase.failed for phase in phases):
        return f"Stopped compiling {what} after {seconds:.1f} s."
    return f"Compiled {what} in {seconds:.1f} s."


_progress: Progress | None = None  # of the session


def start(shell: InteractiveShell) -> None:
    """Show the progress of long compilations in this session, if the front end can show it."""
    global _progress
    stop()
    where = sink(shell)
    if where is not None:
        _progress = Progress(where)
        compiling.on_phase = _progress.begin


def settle() -> None:
    """Remove the line. Called at the end of a cell."""
    if _progress is not None:
        _progress.settle()


def stop() -> None:
    """Stop showing progress."""
    global _progress
    settle()
    _progress = compiling.on_phase = None


def sink(shell: InteractiveShell) -> Sink | None:
    """Where progress is shown in this session; None if it cannot be."""
    if os.environ.get(OFF) == "0":
        return None
    front_end = host(shell)
    if front_end.name == "terminal":
        return Terminal() if sys.__stderr__ is not None and sys.__stderr__.isatty() else None
    return None if front_end.flush else Output()
