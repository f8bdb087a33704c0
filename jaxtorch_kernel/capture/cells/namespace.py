"""What a cell under `%%pure` or `%%jit` may touch, as it was before: all of it comes back when the cell fails.

Each step is one call in C where it can be, so that Ctrl-C finds the namespace before or after, never between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ...programs import rng
from ...storage.buffer import buffer_of
from ..modes import Modes
from ..reach import Reach

_consume = deque[Any](maxlen=0).extend


class Before:
    """The state before a cell.

    Args:
        namespace: the user's.
        reach: what the cell can reach.
        effects: whether the program itself puts back what it writes (it takes the memory of what was there).
    """

    def __init__(self, namespace: dict[str, Any], reach: Reach, effects: bool):
        self.namespace = namespace
        self.names = dict(namespace)
        self.reach = reach
        self.effects = effects
        self.modes = Modes()
        self.grads: list[tuple[torch.Tensor, Any]] = []
        self.cells: list[tuple[Any, Any, Any]] = []
        if not effects:
            buffers = [
                buffer_of(b)
                for m in reach.modules.values()
                for b in m._buffers.values()
                if b is not None and b.device.type == "jax" and not is_lazy(b)
            ]
            cells = [*buffers, *rng._sources.values()]
            self.cells = [(c, c.array, c.spec) for c in cells]

    def code_runs(self) -> None:
        """Look at what only the cell's code could change, and no program: called before it is traced."""
        if not self.effects:
            tensors = (t for t in self.reach.tensors if t.is_leaf and t.requires_grad)
            self.grads = [(t, t.grad) for t in tensors]

    def restore_names(self) -> None:
        """Give the namespace back its names."""
        replace(self.namespace, self.names)

    def restore(self) -> None:
        """Give everything back."""
        self.restore_names()
        for cell, array, spec in self.cells:
            cell.array, cell.spec = array, spec
        for tensor, grad in self.grads:
            if tensor.grad is not grad:
                tensor.grad = grad
        self.modes.restore()


def replace(namespace: dict[str, Any], names: dict[str, Any]) -> None:
    """Make the namespace hold these names alone."""
    remove(namespace, namespace.keys() - names.keys())
    namespace.update(names)


def remove(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Take names away, all in one call."""
    _consume(map(namespace.pop, names, [None] * len(namespace)))


def surely(action: Callable[[], Any]) -> None:
    """Do what must be done even if Ctrl-C comes while it is done: then once more, from the start."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
