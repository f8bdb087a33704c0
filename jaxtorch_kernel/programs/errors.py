"""Translation of XLA's errors to torch's."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import torch

from ..base.jax_private import NotFinite
from ..storage.buffer import Buffer
from ..storage.transfer import has_failed
from . import tracing
from .site import describe, user_line


def explain(error: Exception, name: str, where: str | None = None) -> Exception:
    """The exception that torch users expect for an error of the XLA runtime, or of JAX's check of values.

    Args:
        name: the operator or captured function that ran; "" if unknown, as in a backward pass.
        where: the line that launched it; by default the current line.
    """
    text = str(error)
    what = f" in `{name.removesuffix('.default')}`" if name else ""
    where = user_line() if where is None else where
    if isinstance(error, NotFinite):
        kind = getattr(error, "ty", "not finite")
        return FloatingPointError(f"invalid value ({kind}) encountered{what}{where}")
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return torch.OutOfMemoryError(
            f"JAX ran out of device memory{what}{where}. `torch.jax.memory_summary()` shows how much "
            f"is held; `del` unneeded tensors, or use smaller batches. XLA reports: {text}"
        )
    return RuntimeError(f"XLA failed{what}{where}: {text}")


def explain_call(error: Exception, name: str, operands: Iterable[Buffer]) -> Exception:
    """Like `explain`, but names an earlier program if that is the one that failed.

    XLA may report a failure only when a later call uses the results.
    """
    for buffer in operands:
        if has_failed(buffer.array):
            try:
                jax.block_until_ready(buffer.array)
            except jax.errors.JaxRuntimeError as first:
                return explain_buffer(first, buffer)
    return explain(error, name)


def explain_buffer(error: Exception, buffer: Buffer) -> Exception:
    """The exception for data that a program failed to compute. The buffer no longer counts as memory."""
    buffer.failed()
    origin = buffer.origin
    if origin is None:
        return explain(error, "", "")
    program, code, instruction = origin
    return explain(error, "" if program is None else program.name, describe(code, instruction))


def mixed_devices(name: str, other: torch.device) -> Exception:
    """torch's error for operands on several devices."""
    advice = "Move one of them: `.to('jax')` or `.cpu()`."
    if tracing.active():
        advice = (
            "Captured code takes its arguments to the jax device, and reads modules and other tensors where they are: "
            "move them with `.to('jax')`."
        )
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"jax:0 and {other}! (in {name}) {advice}"
    )
