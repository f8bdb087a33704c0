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

import jaxtorch
from jaxtorch.deferred.recorder import MOST_CALLS
from jaxtorch.deferred.switch import switch

MODES = ("reads", "calls", "random", "steps", "compiled")


class _RandomSize(int):
    """Compares as a number that is drawn at each comparison."""

    source = random.Random()

    def __le__(self, calls: int) -> bool:  # `calls >= self`
        return self.source.random() < 0.1


def use(mode: str, seed: int | None = None) -> None:
    """Defer the calls of this process from now on."""
    if mode not in MODES:
        raise ValueError(f"JAXTORCH_DEFERRED is one of {', '.join(MODES)}, not {mode!r}")
    policy, recorder = switch.policy, switch.recorder
    recorder.most_calls = {"calls": 1, "random": _RandomSize()}.get(mode, MOST_CALLS)
    _RandomSize.source.seed(int(os.environ.get("JAXTORCH_SEED", "0")) if seed is None else seed)
    policy.sightings = {"compiled": 1, "steps": 1 << 60, "calls": 1 << 60}.get(mode, 2)
    policy.background = mode == "reads"
    policy.pauses = False
    jaxtorch.config.update(execution="deferred")


def stop() -> None:
    """Back to immediate execution, as by default."""
    jaxtorch.config.update(execution="immediate")
    policy, recorder = switch.policy, switch.recorder
    recorder.most_calls = MOST_CALLS
    policy.sightings, policy.background, policy.pauses = 2, True, True
