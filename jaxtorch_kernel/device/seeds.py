"""The seed of `torch.manual_seed`, which is only stored until the device starts.

`torch.manual_seed` seeds every backend, also in programs that never use the device. Noting the seed imports no jax.
"""

from __future__ import annotations

from collections.abc import Callable

_noted: int | None = None
_seed_all: Callable[[int], None] | None = None


def manual_seed_all(seed: int) -> None:
    """Seed the random key of every JAX device. Before the device is used, only note the seed."""
    global _noted
    if _seed_all is None:
        _noted = int(seed)
    else:
        _seed_all(int(seed))


def seed_by(seed_all: Callable[[int], None]) -> None:
    """Use `seed_all` from now on, and call it with the noted seed, if there is one."""
    global _seed_all
    _seed_all = seed_all
    if _noted is not None:
        seed_all(_noted)
