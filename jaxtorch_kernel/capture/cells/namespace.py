"""A snapshot of what a cell under `%%pure` or `%%jit` can modify, restored when the cell fails.

Where possible each step is a single call in C, so that Ctrl-C cannot leave the namespace half-updated.
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
        effects: whether the program itself restores what it writes (the old memory is donated to it).
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
            cells = [*buffers, *rng._keys.values()]
            self.cells = [(c, c.array, c.spec) for c in cells]

    def code_runs(self) -> None:
        """Snapshot what only the cell's code, not a program, can change. Called before the cell is traced."""
        if not self.effects:
            tensors = (t for t in self.reach.tensors if t.is_leaf and t.requires_grad)
            self.grads = [(t, t.grad) for t in tensors]

    def restore_names(self) -> None:
        """Restore the names of the namespace."""
        replace(self.namespace, self.names)

    def restore(self) -> None:
        """Restore everything."""
        self.restore_names()
        for cell, array, spec in self.cells:
            cell.array, cell.spec = array, spec
        for tensor, grad in self.grads:
            if tensor.grad is not grad:
                tensor.grad = grad
        self.modes.restore()


def replace(namespace: dict[str, Any], names: dict[str, Any]) -> None:
    """Make the namespace hold only these names."""
    remove(namespace, namespace.keys() - names.keys())
    namespace.update(names)


def remove(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Remove names, all in one call."""
    _consume(map(namespace.pop, names, [None] * len(namespace)))


def surely(action: Callable[[], Any]) -> None:
    """Run an action to completion: if Ctrl-C interrupts it, run it again from the start."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
