"""`torch.autograd.graph.saved_tensors_hooks` and captured code.

Around a call of `pure`, as around an eager call, the hooks receive what the call saves for backward: the program's
residuals (`operators/bridge.py`). Inside `pure` torch saves nothing, so hooks are refused there. Inside a `jit` step
torch's own engine runs, and hooks work. Around a step they would have to be part of its program, so they are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ..base import torch_private as private
from ..base.replaced import Replaced
from ..programs import tracing
from .errors import CaptureError

_enter = saved_tensors_hooks.__enter__


def check_none(name: str) -> None:
    """Check that no hooks are open around a step.

    Raises:
        CaptureError: if there are any.
    """
    if private.saving_hooks() is not None:
        raise CaptureError(
            f"{name} is called under saved_tensors_hooks, which would have to be part of its program",
            "Enter them inside the step. To save less for its backward pass, use torch.utils.checkpoint there.",
        )


@contextmanager
def open_trace() -> Iterator[None]:
    """Context of a trace: hooks around the call do not receive what torch saves in it, and none may be entered."""
    if private.saving_hooks() is None:
        with _replaced.applied():
            yield
        return
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t), _replaced.applied():
        yield


def _enter_traced(self: saved_tensors_hooks) -> None:
    trace = tracing.current()
    if trace is not None and trace.root.differentiable:
        raise CaptureError(
            "saved_tensors_hooks are entered inside pure code, where XLA decides what is saved for the backward pass",
            "Enter them around the call, or use torch.utils.checkpoint inside.",
        )
    if trace is not None and isinstance(self, save_on_cpu):
        raise CaptureError(
            "save_on_cpu is entered inside captured code, whose program keeps all tensors on the device",
            "Use torch.utils.checkpoint, or save_on_cpu around a call of pure code.",
        )
    _enter(self)


_replaced = Replaced((saved_tensors_hooks, "__enter__", _enter_traced))
