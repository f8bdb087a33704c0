"""The compiled form of one program."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence

import jax

from ..programs.compiling import Handle, finish
from ..programs.stats import ProgramRecord

# Runs a program on flat arrays.
Run = Callable[..., Sequence[jax.Array]]

build_lock = threading.RLock()  # held while any eager program is built


class Executable:
    """A traced function, compiled on request.

    Attributes:
        call: runs the program on flat arrays; None until it is compiled.
        record: of the compilation; None until then.
        counted_by_caller: the caller adds to `record.calls`, because nothing may run between the execution of a
            program that writes and the storing of its results.
    """

    __slots__ = (
        "__weakref__",
        "_avals",
        "_name",
        "_seconds",
        "_traced",
        "call",
        "counted_by_caller",
        "record",
    )

    def __init__(
        self,
        name: str,
        traced: jax.stages.Traced,
        seconds: float,
        avals: Sequence[jax.ShapeDtypeStruct],
        counted_by_caller: bool,
    ):
        self._name, self._seconds, self._avals = name, seconds, avals
        self._traced: jax.stages.Traced | None = traced
        self.counted_by_caller = counted_by_caller
        self.call: Run | None = None
        self.record: ProgramRecord | None = None

    def compile(self) -> jax.stages.Compiled:
        """Compile the trace and release it. Sets `call` and `record`."""
        assert self._traced is not None
        call, record = finish(self._traced, self._name, self._seconds, self._avals)
        self._traced = None  # the handle of `call` keeps what views need of it
        handle: Handle = call.program  # type: ignore[attr-defined]  # `finish` attached it
        with build_lock:
            self.call, self.record = call, record
            _compiled.add(self)
            if counting:
                self.count(True)
        return handle.executable

    def count(self, on: bool) -> None:
        """Switch the counting of calls on or off for this program."""
        if self.counted_by_caller or self.call is None:
            return
        call, record = getattr(self.call, "uncounted", self.call), self.record
        assert record is not None
        if not on:
            self.call = call
            return

        def counted(*operands: jax.Array) -> Sequence[jax.Array]:
            record.calls += 1
            return call(*operands)

        counted.uncounted = call  # type: ignore[attr-defined]  # functions accept any attribute
        self.call = counted


_compiled: weakref.WeakSet[Executable] = weakref.WeakSet()
counting = False


def count_calls(on: bool) -> None:
    """Switch the counting of calls on or off for all eager programs."""
    global counting
    with build_lock:
        counting = on
        for executable in list(_compiled):
            executable.count(on)
