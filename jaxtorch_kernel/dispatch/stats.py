"""What the dispatch has done so far: compiled programs, operators that ran on the CPU."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Site = tuple[str, int]  # a line of the user's: file, line


@dataclass(eq=False)  # hashed by identity
class Source:
    """What is compiled, once or again and again: a function under `pure`, a cell, all eager operators.

    Attributes:
        kind: by what: "eager", "pure", "jit", "cell", ...
        hits: calls that found a program.
        traces: calls that were traced. Of eager operators neither is counted.
        site: where it was traced last.
        history: a record of each trace (`insight/recompiles.py`), oldest first.
    """

    name: str
    kind: str
    hits: int = 0
    traces: int = 0
    site: Site | None = None
    history: list[Any] = field(default_factory=list)


EAGER = Source("eager operators", "eager")


_here = threading.local()


@contextmanager
def tracing_for(source: Source) -> Iterator[None]:
    """What is compiled of the block's traces, now or later, is recorded under `source`."""
    before = getattr(_here, "source", None)
    _here.source = source
    try:
        yield
    finally:
        _here.source = before


def source_here(name: str) -> Source:
    """What is being traced in this thread; a source of its own outside of any."""
    return getattr(_here, "source", None) or Source(name, "call_jax")


def nothing() -> None:
    """The weak reference to what is gone."""


@dataclass(eq=False)
class Compiled:
    """One compiled program.

    Attributes:
        name: of the operator or the function.
        trace, lowering, xla: seconds.
        source: what it was compiled of.
        part: which of its programs: "" for all of it, "saving" for a forward pass that keeps what the backward pass
            needs, "backward" for that.
        site: the line that asked for it.
        avals: shape and dtype of its inputs.
        calls: how often it ran. Those of the eager hot path count while they are recorded (`insight/events.py`).
        persistent_hit: whether XLA's work was found in the persistent cache; None where nobody listened.
        handle: the executable and its trace (`compiling.py`), while anybody can still run it.
        reason: why it was traced although there was a program of its source.
        cleared: taken out of the list that a person sees.
        id: its number, from 1 on.
    """

    name: str
    trace: float
    xla: float
    lowering: float = 0.0
    source: Source = EAGER
    part: str = ""
    site: Site | None = None
    avals: Sequence[Any] = ()
    calls: int = 0
    persistent_hit: bool | None = None
    handle: Callable[[], Any] = nothing
    reason: str | None = None
    cleared: bool = False
    id: int = field(default_factory=itertools.count(1).__next__)


compiled: list[Compiled] = []
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
