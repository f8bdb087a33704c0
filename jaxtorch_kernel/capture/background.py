"""Compiles captured programs of the session for TPUs that this machine does not have, in the background.

A program is lowered again for the other platform (`target_program.py`), and handed to the compiling process
(`tpu.py`). One thread does this for one program after the other, the latest request first; it ends when nothing waits.
The process takes no time from the session, but lowering is Python and needs the interpreter's lock. So while a cell
runs (between `hold` and `release`) no lowering begins, unless the cell itself waits for the result. A request refers
to its program weakly: if the program is gone before its turn, the request is dropped.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence

from .target_program import TargetProgram, lowered_for
from .tpu import CompileError, shared

_MOST_WAITING = 64  # requests; beyond, the oldest is dropped
QUIET = 0.2  # seconds after a cell before a lowering begins: another cell may follow at once
_TOO_LARGE = re.compile(r"the total memory required.*?exceeds available HBM \([^)]*\)")


class Background:
    """The requests, and the thread that serves them.

    Attributes:
        on_change: called in any thread when the state of a program has changed; must not raise.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[TargetProgram], None] | None = None
        self._held = False
        self._released = 0.0
        self._closing = False
        self._clear()

    def _clear(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[TargetProgram] = []  # the next last
        self._urgent: list[TargetProgram] = []  # those that a thread waits for
        self._current: TargetProgram | None = None
        self._thread: threading.Thread | None = None

    def submit(self, program: TargetProgram) -> None:
        """Queue a request; it comes before those that wait."""
        with self._changed:
            self._waiting.append(program)
            self._report(program)
            if len(self._waiting) > _MOST_WAITING:
                self._end(self._waiting.pop(0), "dropped", "too many programs waited")
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="jaxtorch-target", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def wait(self, programs: Sequence[TargetProgram]) -> None:
        """Wait until these requests are served, before all others and also while a cell runs.

        Ctrl-C cancels them.
        """
        try:
            with self._changed:
                for program in programs:
                    if program in self._waiting:
                        self._waiting.remove(program)
                        self._waiting.append(program)
                self._urgent += programs
                self._changed.notify_all()
                while not all(p.ended for p in programs):
                    self._changed.wait()
        except BaseException:
            self.cancel(programs)
            raise
        finally:
            with self._changed:
                self._urgent = [p for p in self._urgent if p not in programs]

    def cancel(self, programs: Sequence[TargetProgram] | None = None) -> None:
        """Drop requests, by default all. If one is being compiled, the compiling process ends."""
        with self._changed:
            chosen = [*self._waiting, self._current] if programs is None else programs
            for program in chosen:
                if program is not None and not program.ended:
                    self._end(program, "cancelled")
            self._waiting = [p for p in self._waiting if not p.ended]
            current = self._current
        if current is not None and current.ended and current.request is not None:
            shared.cancel(current.request)

    def is_urgent(self, program: TargetProgram) -> bool:
        """Whether a thread waits for this request."""
        return program in self._urgent

    def hold(self) -> None:
        """A cell begins: start no lowering."""
        self._held = True

    def release(self) -> None:
        """The cell has ended."""
        with self._changed:
            self._held, self._released = False, time.monotonic()
            self._changed.notify_all()

    # -- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (program := self._next()) is not None:
            try:
                self._serve(program)
            except Exception as error:  # of any kind: the session never fails for it
                self._finish(program, "failed", one_line(error))

    def _next(self) -> TargetProgram | None:
        """The next request, when its lowering may begin; None if none waits."""
        with self._changed:
            self._current = None
            while self._waiting and not self._closing:
                program = self._waiting[-1]
                quiet = self._released + QUIET - time.monotonic()
                if program in self._urgent or not (self._held or quiet > 0):
                    self._current = self._waiting.pop()
                    return program
                self._changed.wait(None if self._held else quiet)
            self._thread = None
            return None

    def _serve(self, program: TargetProgram) -> None:
        program.started = time.monotonic()
        self._set(program, "lowering")
        lowered = lowered_for(program)
        if lowered is None:
            self._finish(program, "dropped", "its program is gone")
            return
        request = program.request = lowered._request()
        if program.ended or self._closing:
            return
        self._set(program, "compiling")
        try:
            executable = lowered.compiled_by(shared, request)
        finally:
            program.request = None
        with self._changed:
            if not program.ended:
                program.executable = executable
        self._finish(program, "compiled")

    def _set(self, program: TargetProgram, state: str) -> None:
        with self._changed:
            if not program.ended:
                program.state = state
                self._report(program)

    def _finish(self, program: TargetProgram, state: str, error: str = "") -> None:
        with self._changed:
            if not program.ended:
                self._end(program, state, error)

    def _end(self, program: TargetProgram, state: str, error: str = "") -> None:
        program.took, program.started = program.seconds, None
        program.state, program.error = state, error
        self._report(program)
        self._changed.notify_all()

    def _report(self, program: TargetProgram) -> None:
        if self.on_change is not None:
            self.on_change(program)

    # -- the end of the process -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the thread before Python ends: a thread inside MLIR then would crash the process.

        The compiling process is killed, and a lowering is stopped by an exception in its thread.
        """
        self._closing = True
        thread = self._thread
        self.cancel()
        shared.close()
        if thread is not None and thread.ident is not None:
            _stop(thread, thread.ident)

    def forget(self) -> None:
        """Drop everything: in a forked process, which does not have the thread."""
        programs = [*self._waiting, *([self._current] if self._current else ())]
        self._clear()  # the lock may have been held when the process forked
        with self._changed:
            for program in programs:
                if not program.ended:
                    self._end(program, "dropped", "it waited when the process forked")


def one_line(error: BaseException) -> str:
    """The message of an error in one line."""
    text = " ".join(str(error).split())
    if (needs := _TOO_LARGE.search(text)) is not None:
        return f"does not fit: {needs[0]}"
    if not isinstance(error, CompileError | ValueError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 300 else f"{text[:300]}..."


def _stop(thread: threading.Thread, ident: int) -> None:
    """Raise SystemExit in a thread until it ends, for at most 10 s.

    Python ignores and reports an exception in a callback of the garbage collector or in `__del__`. Then the thread
    goes on, and it is raised again.
    """
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not SystemExit:
            report(unraisable)

    sys.unraisablehook = hook
    try:
        for _ in range(10):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(ident), ctypes.py_object(SystemExit)
            )
            thread.join(1)
            if not thread.is_alive():
                return
    finally:
        sys.unraisablehook = report


background = Background()
atexit.register(background.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=background.forget)
