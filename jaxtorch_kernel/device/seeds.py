"""The seed that `torch.manual_seed` gives to every backend, in programs that do not use the device too."""

from __future__ import annotations

from collections.abc import Callable

_noted: int | None = None
_seed_all: Callable[[int], None] | None = None


def manual_seed_all(seed: int) -> None:
    """Seed the source of every JAX device; before the device is used, note the seed."""
    global _noted
    if _seed_all is None:
        _noted = int(seed)
    else:
        _seed_all(int(seed))


def seed_by(seed_all: Callable[[int], None]) -> None:
    """Seed with `seed_all` from now on, and with the noted seed at once."""
    global _seed_all
    _seed_all = seed_all
    if _noted is not None:
        seed_all(_noted)
