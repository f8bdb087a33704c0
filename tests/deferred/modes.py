"""The ways to run tests with deferred execution: `JAXTORCH_DEFERRED=MODE pytest ...` (`make deferred` runs them all).

reads: windows end where they do for users, and are compiled in the background when they repeat.
calls: each call is a window of its own. Results are bit-equal to immediate ones.
random: windows end at random places (`JAXTORCH_SEED`).
steps: windows run call by call, and are never compiled.
compiled: each window is compiled, at its first sighting.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jaxtorch
from jaxtorch.deferred.recorder import MOST_CALLS
from jaxtorch.deferred.switch import switch

MODES = ("reads", "calls", "random", "steps", "compiled")
NEVER = 1 << 60


class _RandomSize(int):
    """Compares as a number that is drawn at each comparison."""

    source = random.Random()

    def __le__(self, calls: int) -> bool:  # `calls >= self`
        return self.source.random() < 0.1


def use(mode: str, seed: int | None = None) -> None:
    """Defer the calls of this process from now on, or run them at once (mode "immediate")."""
    if mode not in (*MODES, "immediate"):
        raise ValueError(f"JAXTORCH_DEFERRED is one of {', '.join(MODES)}, not {mode!r}")
    global current
    current = mode
    policy, recorder = switch.policy, switch.recorder
    jaxtorch.config.update(execution="immediate")
    recorder.most_calls = {"calls": 1, "random": _RandomSize()}.get(mode, MOST_CALLS)
    _RandomSize.source.seed(int(os.environ.get("JAXTORCH_SEED", "0")) if seed is None else seed)
    policy.sightings = {"compiled": 1, "steps": NEVER, "calls": NEVER}.get(mode, 2)
    policy.background = mode in ("reads", "immediate")
    policy.pauses = mode == "immediate"
    recorder.clear_cache()  # with what other modes compiled
    if mode != "immediate":
        jaxtorch.config.update(execution="deferred")


current = "immediate"


@contextmanager
def deferred(mode: str, seed: int = 0) -> Iterator[None]:
    """Use a mode in a block."""
    before = current
    use(mode, seed)
    try:
        yield
    finally:
        use(before)


def immediate() -> AbstractContextManager[None]:
    """Run each call at once in a block."""
    return deferred("immediate")
