"""XLA's errors in torch's words."""

from __future__ import annotations

import torch

from .site import user_line


def explain(error: Exception, name: str, where: str | None = None) -> Exception:
    """The exception that torch users expect for an error of the XLA run time in operator `name`.

    `where` is the line that asked for it; by default the one that is running.
    """
    text = str(error)
    where = user_line() if where is None else where
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return torch.OutOfMemoryError(
            f"JAX ran out of device memory in aten::{name}{where}. `torch.jax.memory_summary()` shows what is "
            f"held; `del` what is not needed, or use smaller batches. XLA says: {text}"
        )
    return RuntimeError(f"XLA failed in aten::{name}{where}: {text}")


def mixed_devices(name: str, other: torch.device) -> Exception:
    """torch's complaint about operands on several devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"jax:0 and {other}! (in {name}) Move one of them: `.to('jax')` or `.cpu()`."
    )
