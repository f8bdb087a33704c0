"""Placement of new arrays: one JAX device (its sharding), chosen per thread with `torch.jax.device(i)`.

torch sees one device, `jax:0`. The JAX devices behind it are physical placement, and placement is part of a
buffer's Spec, so that a program compiled for one chip is never called with another's arrays.
"""

from __future__ import annotations

import contextvars
from typing import Any

import torch

_index: contextvars.ContextVar[int] = contextvars.ContextVar("jaxtorch_device", default=0)
_shardings: dict[int, Any] = {}


def devices() -> list[Any]:
    """JAX's local devices of its default platform."""
    import jax

    return jax.local_devices()


def index() -> int:
    """The index of the current device among `devices()`."""
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


def current() -> Any:
    """The sharding that new arrays get."""
    i = _index.get()
    sharding = _shardings.get(i)
    if sharding is None:
        import jax

        sharding = _shardings[i] = jax.sharding.SingleDeviceSharding(devices()[i])
    return sharding


def everywhere(sharding: Any) -> Any:
    """The sharding of what is whole on each device of another: a number beside an array that is in parts."""
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())
    return sharding


def index_of(device: Any = None) -> int:
    """The index among JAX's local devices that `device` (int, str, torch.device, None) means."""
    if device is None:
        return index()
    if isinstance(device, int):
        return index() if device < 0 else device
    device = torch.device(device)
    if device.type != "jax":
        raise ValueError(f"Expected a jax device, but got: {device}")
    return index() if device.index is None else device.index
