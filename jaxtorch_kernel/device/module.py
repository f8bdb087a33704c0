"""`torch.jax`: the twin of `torch.cuda`."""

from __future__ import annotations

from typing import Any

import torch


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    from . import rng

    rng.seed_all(seed)


def get_rng_state(device: Any = "jax") -> torch.Tensor:
    from . import rng

    return rng.get_state()


def set_rng_state(state: torch.Tensor, device: Any = "jax") -> None:
    from . import rng

    rng.set_state(state)
