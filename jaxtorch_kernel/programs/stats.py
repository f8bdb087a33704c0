"""What the dispatch has done so far: compiled programs, operators that ran on the CPU."""

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
    """What is compiled, once or again and again: a function under `pure`, a cell, all eager operators.

    Attributes:
        kind: by what: "eager", "pure", "jit", "cell", ...
        hits: calls that found a program.
        traces: calls that were traced. Of eager operators neither is counted.
        history: its traces, oldest first; the latest hundred.
        warned: that it was traced too often has been said.
        caches: where its programs are kept, each with a `clear_cache`.
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
        state: what the program depends on: path -> what stood there (`capture/retraces.py`).
        reasons: why it was traced although it had been before: what changed, and how to avoid it.
        seconds: that the code ran. They count once, for the first program that is compiled of the trace.
    """

    source: Source
    site: Site | None = None
    state: dict[str, Any] | None = field(default=None, repr=False)
    reasons: list[Reason] = field(default_factory=list)
    seconds: float = 0.0


class Reason(NamedTuple):
    """Why code was traced again."""

    what: str
    advice: str = ""


EAGER = Trace(Source("eager operators", "eager"))

_here = threading.local()


@contextmanager
def tracing_as(trace: Trace) -> Iterator[None]:
    """What is captured in the block, and compiled then or later, is recorded under `trace`."""
    before = getattr(_here, "trace", None)
    _here.trace = trace
    try:
        yield
    finally:
        _here.trace = before


def trace_here(name: str) -> Trace:
    """What is being traced in this thread; one of its own outside of any."""
    return getattr(_here, "trace", None) or Trace(Source(name, "call_jax"))


def nothing() -> None:
    """The weak reference to what is gone."""


@dataclass(eq=False)
class Compiled:
    """One compiled program.

    Attributes:
        name: of the operator or the function.
        trace, lowering, xla: seconds.
        cause: the trace that it was compiled of.
        part: which of its programs: "" for all of it, "saving" for a forward pass that keeps what the backward pass
            needs, "backward" for that.
        site: the line that asked for it.
        avals: shape and dtype of its inputs.
        calls: how often it ran. Those of the eager hot path count while they are recorded (`insight/events.py`).
        persistent_hit: whether XLA's work was found in the persistent cache; None where nobody listened.
        handle: the executable and its trace (`compiling.py`), while anybody can still run it.
        cleared: taken out of the list that a person sees.
        id: its number, from 1 on.
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
    """Count one run of an operator on the CPU; returns how often it has run there."""
    with _lock:
        _fallbacks[name] += 1
        return _fallbacks[name]


_decompositions: Counter[str] = Counter()


def count_decomposition(name: str) -> None:
    """Count one run of an operator by torch's decomposition."""
    with _lock:
        _decompositions[name] += 1


def decompositions() -> dict[str, int]:
    """How often each operator ran by torch's decomposition, as one program."""
    with _lock:
        return dict(_decompositions.most_common())


def reset() -> None:
    """Forget the counts of fallbacks and decompositions."""
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
    """How many XLA programs this process has compiled for operators."""
    return len(compiled)
