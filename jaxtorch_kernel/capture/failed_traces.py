"""Takes back what code did to optimizers and gradients in a trace that failed.

The code may step an optimizer before it raises an error, or before a rule of capture refuses what it did. The step
stores tensors of the trace in the optimizer's state and in `.grad`, where they would outlive the trace without a value.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .optimizer_state import SavedState

Tensor = torch.Tensor
Gradients = list[tuple[Tensor, Tensor | None]]


@contextmanager
def undone(gradients: Callable[[], Gradients] = list) -> Iterator[dict[int, SavedState]]:
    """Context of a trace: if it fails, optimizers that stepped in it have their state of before.

    Args:
        gradients: returns leaves with the `.grad` that they get back, too.

    Yields:
        The saved state of each optimizer that has stepped, by its id.
    """
    saved: dict[int, SavedState] = {}
    thread = threading.get_ident()

    def save(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if threading.get_ident() == thread and id(optimizer) not in saved:
            saved[id(optimizer)] = SavedState(optimizer)

    handle = register_optimizer_step_pre_hook(save)
    try:
        yield saved
    except BaseException:
        for state in saved.values():
            state.restore()
        for leaf, gradient in gradients():
            if leaf.grad is not gradient:
                leaf.grad = gradient
        raise
    finally:
        handle.remove()
