"""Seeds and states of `torch.jax`, like those of `torch.cuda.random`. The keys are in `programs/rng.py`."""

from __future__ import annotations

import sys

import torch

from ..programs.rng import default_key, fresh_seed, is_tracing, seed_all_keys
from ..storage.placement import Device
from . import seeds
from .seeds import manual_seed_all as manual_seed_all


def follow_torch(seed: int) -> None:
    """Seed the key of every JAX device, for `torch.manual_seed` and `torch.seed`."""
    # On the stack: `seeds.manual_seed_all`, torch's call of it, and `torch.manual_seed` or `torch.seed`.
    if is_tracing() and sys._getframe(3).f_code is torch.random.seed.__code__:
        fresh_seed()  # raises an error in captured code
    seed_all_keys(seed)


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the jax device."""
    seed_all_keys(int(seed))


def seed() -> int:
    """Seed from the operating system; returns the seed."""
    value = fresh_seed()
    seed_all_keys(value)
    return value


def seed_all() -> int:
    """Same as `seed`."""
    return seed()


def initial_seed() -> int:
    """The seed that the current key started from."""
    return default_key().initial_seed


def get_rng_state(device: Device = "jax") -> torch.Tensor:
    """The state of the current key, as a ByteTensor on the CPU."""
    return default_key().state()


def get_rng_state_all() -> list[torch.Tensor]:
    """`[get_rng_state()]`, because torch sees one jax device."""
    return [default_key().state()]


def set_rng_state(new_state: torch.Tensor, device: Device = "jax") -> None:
    """Restore a state from `get_rng_state`.

    Raises:
        RuntimeError: the state is invalid.
    """
    default_key().set_state(new_state)


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore the states from `get_rng_state_all`."""
    (state,) = new_states
    default_key().set_state(state)


seeds.seed_by(follow_torch)
