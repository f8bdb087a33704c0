"""XLA's errors in torch's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import torch

from ..storage.buffer import Buffer
from ..storage.transfer import has_failed
from .site import describe, user_line


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


def explain_call(error: Exception, name: str, operands: Iterable[Buffer]) -> Exception:
    """As `explain`, for a call whose operands may be what an earlier program failed to compute: then that one is named.

    XLA tells of such a failure when it is too late for the call that failed.
    """
    for buffer in operands:
        if has_failed(buffer.array):
            try:
                jax.block_until_ready(buffer.array)
            except jax.errors.JaxRuntimeError as first:
                return explain_buffer(first, buffer)
    return explain(error, name)


def explain_buffer(error: Exception, buffer: Buffer) -> Exception:
    """The exception for data that a program failed to compute, which counts as no memory from now on."""
    buffer.failed()
    origin: Any = buffer.origin
    if origin is None:
        return explain(error, "(a backward pass)", "")
    maker, code, instruction = origin
    return explain(error, maker.name, describe(code, instruction))


def mixed_devices(name: str, other: torch.device) -> Exception:
    """torch's complaint about operands on several devices."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"jax:0 and {other}! (in {name}) Move one of them: `.to('jax')` or `.cpu()`."
    )
