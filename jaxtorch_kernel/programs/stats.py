"""Records of what was compiled, and counts of operators that ran on the CPU or through a decomposition.

A `FunctionRecord` has a `TraceRecord` for each of its latest traces. Each compiled program has a `ProgramRecord`, which
refers to the trace that it was compiled from.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import jax

    from .compiling import Handle

Site = tuple[str, int]  # a line of user code: file, line


class ProgramHolder(Protocol):
    """An object with a cache of compiled programs."""

    def clear_cache(self) -> None:
        """Drop the programs."""


_NOT_CAPTURED = ("engine", "eager", "deferred", "call_jax", "jax.jit")


@dataclass(eq=False)  # hashed by identity
class FunctionRecord:
    """Code that is compiled, once or repeatedly: a captured function, a notebook cell, or all eager operators together.

    Attributes:
        kind: how it is compiled: "eager", "pure", "jit", ...
        title: what a reader calls a cell without a name: its first line; "" if the name says enough.
        hits: calls that ran a program that was already compiled.
        traces: calls that were traced. Eager operators count neither.
        history: the latest hundred traces, oldest first.
        warned: whether the warning about too many traces has been issued.
        caches: the objects that hold its programs.
    """

    name: str
    kind: str
    hits: int = 0
    traces: int = 0
    history: deque[TraceRecord] = field(default_factory=lambda: deque(maxlen=100), repr=False)
    warned: bool = False
    title: str = ""
    caches: weakref.WeakSet[ProgramHolder] = field(default_factory=weakref.WeakSet, repr=False)

    @property
    def captured(self) -> bool:
        """Whether it is captured code: not an eager operator, nor code that is JAX's already."""
        return self.kind not in _NOT_CAPTURED


@dataclass(eq=False)
class TraceRecord:
    """One trace of a function, for one signature.

    Attributes:
        site: the line whose call was traced.
        state: the values that the program depends on at the time of the trace, by path (`capture/retraces.py`).
        reasons: why the function was retraced: what changed, and how to avoid it.
        seconds: run time of the traced code, counted once, for the first program compiled from the trace.
        roles: what the inputs are to the training of a model, by their names (`capture/dependencies/labels.py`).
    """

    function: FunctionRecord
    site: Site | None = None
    state: dict[str, object] | None = field(default=None, repr=False)
    reasons: list[Reason] = field(default_factory=list)
    seconds: float = 0.0
    roles: dict[str, Any] = field(default_factory=dict, repr=False)


class Reason(NamedTuple):
    """The reason for a retrace."""

    what: str
    advice: str = ""


EAGER = TraceRecord(FunctionRecord("eager operators", "eager"))

_thread = threading.local()  # `.trace`: the record of the trace that is open


@contextmanager
def tracing_as(trace: TraceRecord) -> Iterator[None]:
    """Record the programs that are captured in the block, and compiled then or later, under `trace`."""
    before = getattr(_thread, "trace", None)
    _thread.trace = trace
    try:
        yield
    finally:
        _thread.trace = before


def trace_here(name: str) -> TraceRecord:
    """The record of this thread's open trace; a new one if nothing is being traced."""
    return getattr(_thread, "trace", None) or TraceRecord(FunctionRecord(name, "call_jax"))


def nothing() -> None:
    """Replaces a weak reference to a deleted object."""


@dataclass(eq=False)
class ProgramRecord:
    """One compiled program.

    Attributes:
        name: of the operator or the function.
        trace, lowering, xla: seconds.
        cause: the trace that it was compiled from.
        part: which part of the computation: "" for all of it, "saving" for a forward pass that returns residuals,
            "backward" for the backward pass.
        site: the line that caused the compilation.
        avals: shapes and dtypes of its inputs.
        calls: how often it ran. Calls on the eager hot path count only in a recorded session (`insight/events.py`).
        persistent_hit: whether the executable came from the persistent cache; None if this was not recorded.
        handle: returns the executable and its trace (`compiling.py`), or None if the program can no longer be run.
        cleared: whether it was removed from the list shown to the user.
        id: its number, counted from 1.
    """

    name: str
    trace: float
    xla: float
    lowering: float = 0.0
    cause: TraceRecord = EAGER
    part: str = ""
    site: Site | None = None
    avals: Sequence[jax.ShapeDtypeStruct] = ()
    calls: int = 0
    persistent_hit: bool | None = None
    handle: Callable[[], Handle | None] = nothing
    cleared: bool = False
    id: int = field(default_factory=itertools.count(1).__next__)


compiled: list[ProgramRecord] = []
evicted = (
    0  # eager programs dropped because `config.program_memory` was used up (`program_cache.py`)
)
_fallbacks: Counter[str] = Counter()
_lock = threading.Lock()


def count_fallback(name: str) -> int:
    """Count one run of an operator on the CPU; returns how often it has run there."""
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
    """How often each operator ran on the CPU because the jax device does not implement it.

    Example:
        >>> import jaxtorch
        >>> isinstance(jaxtorch.fallbacks(), dict)
        True
    """
    with _lock:
        return dict(_fallbacks.most_common())


def compile_count() -> int:
    """The number of XLA programs that jaxtorch has compiled in this process, for operators and for captured code.

    Example:
        >>> import torch, jaxtorch
        >>> x = torch.ones(3, device="jax")
        >>> before = jaxtorch.compile_count()
        >>> y = jaxtorch.pure(lambda x: x.sin() + 1)(x)
        >>> jaxtorch.compile_count() - before
        1
    """
    return len(compiled)
