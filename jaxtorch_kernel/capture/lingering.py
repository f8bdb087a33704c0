"""Tensors over arrays that the user's own JAX code traces: `to_torch` inside `jax.jit`, `jax.grad` or `jax.vmap`.

`jax_view` runs torch code in a trace that ends with the code. `to_torch` of a traced array returns a tensor, and torch
code works on it afterwards. So its trace lingers: it is the thread's trace until JAX has left the function. The next
call of torch finds out, and closes it (`tracing.current`).

Like code under `jax_view`, the code has no effects: it draws no random numbers, and writes only to tensors that were
made in the trace. Unlike there, torch's state is the user's: tensors without a device are made on the default one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager

import jax
import torch

from ..base.jax_private import open_traces
from ..dispatch.read import contiguous_array
from ..programs import tracing
from ..programs.rng import RandomKey
from ..storage.buffer import Buffer
from .code_trace import CodeTrace
from .errors import CaptureError
from .intercepted import intercepted
from .jax_view import ViewTrace, canonical, to_tensor
from .one_thread import one_thread

Tensor = torch.Tensor


class LingeringTrace(ViewTrace):
    """The trace of the tensors that `to_torch` made of traced arrays in one thread."""

    lingers = True

    def __init__(self) -> None:
        super().__init__(None)
        self._began = weakref.ref(next(open_traces()))

    def contexts(self) -> Iterator[AbstractContextManager[object]]:
        # The contexts without an effect on other code of the thread.
        yield one_thread()
        yield intercepted.applied()

    def continues(self) -> bool:
        """Whether JAX still runs what it traced when the trace began, or something inside it."""
        began = self._began()
        return any(trace is began for trace in open_traces())

    def read(self, buffer: Buffer) -> jax.Array:
        if isinstance(buffer, RandomKey):
            raise CaptureError(
                "torch code on a traced array draws random numbers without a key",
                "Use jaxtorch.jax_view(function, rng=True), whose function takes a JAX key first, or call .eval() on "
                "the module.",
            )
        with jax.enable_x64(True):
            return super().read(buffer)

    def note_writer(self, buffer: Buffer) -> None:
        if not self.created_here(buffer):
            spec = buffer.spec
            raise CaptureError(
                "torch code on a traced array writes to a tensor that existed before "
                f"({spec.dtype}{list(spec.shape)})",
                "A JAX function has no effects: write to a copy (x.clone()) and return it. For a module's running "
                "statistics, call .eval().",
            )


def tensor_over_tracer(array: jax.Array, device: torch.device | str | None = None) -> Tensor:
    """A tensor over a traced array, on which torch code works as in `jax_view`.

    Raises:
        TypeError: another device than jax is asked for, or torch lacks the dtype.
    """
    if device is not None and torch.device(device).type != "jax":
        raise TypeError(
            f"a traced array has no value yet and cannot become a tensor on {device}: leave out device=, or call a "
            "function of CPU tensors with jaxtorch.torch2jax"
        )
    torch.jax.init()  # type: ignore[attr-defined]  # the device may not have been used before
    trace = tracing.current()
    if trace is None:
        trace = LingeringTrace()
        tracing.linger(trace)
    assert isinstance(trace, CodeTrace)
    with jax.enable_x64(True):
        return to_tensor(array, trace)


def array_in_trace(tensor: Tensor) -> jax.Array | None:
    """The array of a tensor of the device, for the JAX code that is traced; None without a lingering trace."""
    trace = tracing.current()
    if not isinstance(trace, LingeringTrace) or tensor.device.type != "jax":
        return None
    array = canonical(contiguous_array(tensor))
    assert isinstance(array, jax.Array)
    return array
