"""Placement of new arrays: one JAX device (its sharding), chosen per thread with `torch.jax.device(i)`.

torch sees one device, `jax:0`. Which JAX device holds an array is its sharding, which is part of the buffer's Spec. So
a program compiled for one chip is never called with the arrays of another.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import torch

Device = int | str | torch.device | None  # what `torch.cuda`'s functions take, too

if TYPE_CHECKING:  # `torch.manual_seed` imports this module, and must not import jax
    import jax
    from jax.sharding import Sharding

_index: contextvars.ContextVar[int] = contextvars.ContextVar("jaxtorch_device", default=0)
_shardings: dict[int, Sharding] = {}


def devices() -> list[jax.Device]:
    """The local devices of JAX's default platform."""
    import jax

    return jax.local_devices()


def index() -> int:
    """The index of the current device in `devices()`."""
    return _index.get()


def set_index(i: int) -> contextvars.Token[int]:
    """Make device `i` current in this context.

    Raises:
        RuntimeError: the device does not exist.
    """
    count = len(devices())
    if not 0 <= i < count:
        raise RuntimeError(
            f"invalid jax device index {i}: JAX has {count} local device(s) here, "
            f"so torch.jax.device takes 0 to {count - 1}."
        )
    return _index.set(i)


def restore(token: contextvars.Token[int]) -> None:
    """Undo one `set_index`."""
    _index.reset(token)


def current() -> Sharding:
    """The sharding of new arrays."""
    i = _index.get()
    sharding = _shardings.get(i)
    if sharding is None:
        import jax

        sharding = _shardings[i] = jax.sharding.SingleDeviceSharding(devices()[i])
    return sharding


def replicated(sharding: Sharding) -> Sharding:
    """The sharding that puts a full copy on each device of another sharding, for numbers beside a sharded array."""
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


def index_of(device: Device = None) -> int:
    """The index in `devices()` that `device` names; that of the current device for None."""
    if device is None:
        return index()
    if isinstance(device, int):
        return index() if device < 0 else device
    device = torch.device(device)
    if device.type != "jax":
        raise ValueError(f"Expected a jax device, but got: {device}")
    return index() if device.index is None else device.index
