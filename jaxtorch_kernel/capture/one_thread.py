"""torch's autograd in the thread of a trace. A trace belongs to one thread: in others the code would find no trace.

A block of `torch.inference_mode` sets the switch that is set here back to several threads, even with `mode=False`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..base.replaced import Replaced
from ..programs import tracing

_enter = torch.inference_mode.__enter__


def _enter_traced(self: torch.inference_mode) -> None:
    _enter(self)
    if tracing.active():
        torch.autograd.set_multithreading_enabled(False)


_replaced = Replaced((torch.inference_mode, "__enter__", _enter_traced))


@contextmanager
def one_thread() -> Iterator[None]:
    """Context of a trace in which autograd runs in this thread, also inside blocks of inference mode."""
    with torch.autograd.set_multithreading_enabled(False), _replaced.applied():
        yield
