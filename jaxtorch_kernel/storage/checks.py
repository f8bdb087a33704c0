"""Checks for unsupported tensors: sparse layouts, pinned memory, an index above `jax:0`."""

from __future__ import annotations

import torch


def check_layout(layout: torch.layout | None, pin_memory: bool | None = None) -> None:
    """Refuse tensors that the device cannot hold.

    Raises:
        RuntimeError: a sparse layout, or pinned memory requested for a device tensor.
    """
    if layout is not None and layout != torch.strided:
        raise RuntimeError(
            f"the jax device supports only dense (strided) tensors, not {layout}: "
            "create it on the CPU, or call .to_dense()"
        )
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


def check_index(device: torch.device | None) -> None:
    """Refuse `jax:1` and above.

    Raises:
        RuntimeError: torch has no such device.
    """
    if device is not None and device.index not in (None, 0):
        raise RuntimeError(
            f"invalid device {device}: torch sees one jax device, jax:0. The JAX devices behind it are "
            "chosen with `with torch.jax.device(i):`, or all used at once by sharding."
        )
