"""What the dispatch has done so far: compiled programs, operators that ran on the CPU."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass
class Compiled:
    """One compiled program: which operator, and how long its trace and XLA took (seconds)."""

    name: str
    trace: float
    xla: float


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
