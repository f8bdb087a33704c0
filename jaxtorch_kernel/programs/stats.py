"""Statistics of the dispatch: compiled programs, and operators that ran on the CPU."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Site = tuple[str, int]  # a line of the user's: file, line


@dataclass(eq=False)  # hashed by identity
class Source:
    """Something that is compiled, once or repeatedly: a function under `pure`, a cell, all eager operators.

    Attributes:
        kind: how it is compiled: "eager", "pure", "jit", "cell", ...
        hits: calls that found a compiled program.
        traces: calls that were traced. Hits and traces of eager operators are not counted.
        history: the latest hundred traces, oldest first.
        warned: whether the warning about too many traces has been issued.
        caches: the caches of its programs, each with a `clear_cache`.
    """

    name: str
    kind: str
    hits: int = 0
    traces: int = 0
    history: deque[Trace] = field(default_factory=lambda: deque(maxlen=100), repr=False)
    warned: bool = False
    caches: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet, repr=False)


@dataclass(eq=False)
class Trace:
    """One trace of a source, for one signature.

    Attributes:
        site: the line whose call was traced.
        state: what the program depends on: path -> value at the trace (`capture/retraces.py`).
        reasons: why it was retraced: what changed, and how to avoid it.
        seconds: run time of the traced code, counted once, for the first program compiled from the trace.
    """

    source: Source
    site: Site | None = None
    state: dict[str, Any] | None = field(default=None, repr=False)
    reasons: list[Reason] = field(default_factory=list)
    seconds: float = 0.0


class Reason(NamedTuple):
    """The reason for a retrace."""

    what: str
    advice: str = ""


EAGER = Trace(Source("eager operators", "eager"))

_here = threading.local()


@contextmanager
def tracing_as(trace: Trace) -> Iterator[None]:
    """Record programs that are captured in the block, and compiled then or later, under `trace`."""
    before = getattr(_here, "trace", None)
    _here.trace = trace
    try:
        yield
    finally:
        _here.trace = before


def trace_here(name: str) -> Trace:
    """The current trace of this thread; a new one if nothing is being traced."""
    return getattr(_here, "trace", None) or Trace(Source(name, "call_jax"))


def nothing() -> None:
    """Stands in for a weak reference to a deleted object."""


@dataclass(eq=False)
class Compiled:
    """One compiled program.

    Attributes:
        name: of the operator or the function.
        trace, lowering, xla: seconds.
        cause: the trace from which it was compiled.
        part: which part of the computation: "" for all of it, "saving" for a forward pass that returns residuals,
            "backward" for the backward pass.
        site: the line that caused the compilation.
        avals: shapes and dtypes of its inputs.
        calls: how often it ran. Calls in the eager hot path count only while they are recorded (`insight/events.py`).
        persistent_hit: whether the executable came from the persistent cache; None if this was not recorded.
        handle: the executable and its trace (`compiling.py`), as long as it can still be run.
        cleared: whether it was removed from the list shown to the user.
        id: its number, counted from 1.
    """

    name: str
    trace: float
    xla: float
    lowering: float = 0.0
    cause: Trace = EAGER
    part: str = ""
    site: Site | None = None
    avals: Sequence[Any] = ()
    calls: int = 0
    persistent_hit: bool | None = None
    handle: Callable[[], Any] = nothing
    cleared: bool = False
    id: int = field(default_factory=itertools.count(1).__next__)


compiled: list[Compiled] = []
evicted = 0  # eager programs that went for want of memory (`kept.py`)
_fallbacks: Counter[str] = Counter()
_lock = threading.Lock()


def count_fallback(name: str) -> int:
    """Count one run of an operator on the CPU; returns its number of runs there."""
    with _lock:
        _fallbacks[name] += 1
        return _fallbacks[name]


_decompositions: Counter[str] = Counter()


def count_decomposition(name: str) -> None:
    """Count one run of an operator through torch's decomposition."""
    with _lock:
        _decompositions[name] += 1


def decompositions() -> dict[str, int]:
    """How often each operator ran through torch's decomposition, as one program."""
    with _lock:
        return dict(_decompositions.most_common())


def reset() -> None:
    """Reset the counts of fallbacks and decompositions."""
    with _lock:
        _fallbacks.clear()
        _decompositions.clear()


def fallbacks() -> dict[str, int]:
    """How often each operator ran on the CPU because the jax device has no lowering for it.

    Example:
        >>> import jaxtorch
        >>> isinstance(jaxtorch.fallbacks(), dict)
        True
    """
    with _lock:
        return dict(_fallbacks.most_common())


def compile_count() -> int:
    """The number of XLA programs that this process has compiled for operators."""
    return len(compiled)
