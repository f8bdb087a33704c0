"""A snapshot of what a cell under `%%pure` or `%%jit` can modify, restored when the cell fails.

Where possible each step is a single call in C, so that Ctrl-C cannot leave the namespace half-updated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch.nn.parameter import is_lazy

from ...programs import rng
from ...programs.trees import is_device_tensor
from ...storage.buffer import Buffer, buffer_of
from ..modes import Modes
from ..reach import Reach

_consume = deque[object](maxlen=0).extend


class Snapshot:
    """The state before a cell.

    Args:
        namespace: the user's.
        reach: what the cell can reach.
        effects: whether the program itself restores what it writes (the old memory is donated to it).

    Attributes:
        names: the names of the namespace, with their values.
        gradients: the leaves that the cell can reach, with their `.grad`; empty if `effects`.
    """

    def __init__(self, namespace: dict[str, object], reach: Reach, effects: bool):
        self.namespace = namespace
        self.names = dict(namespace)
        self.gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._reach = reach
        self._effects = effects
        self._modes = Modes()
        self._discarded = False
        buffers: list[Buffer] = []
        if not effects:
            buffers += [
                buffer_of(b)
                for m in reach.modules.values()
                for b in m._buffers.values()
                if is_device_tensor(b) and not is_lazy(b)
            ]
            buffers += rng._keys.values()
        self._buffers = [(buffer, buffer.array, buffer.spec) for buffer in buffers]

    def add_gradients(self) -> None:
        """Add what only the cell's code, and not a program, can change. Called before the cell is traced."""
        if not self._effects:
            tensors = (t for t in self._reach.tensors if t.is_leaf and t.requires_grad)
            self.gradients = [(t, t.grad) for t in tensors]

    def restore_names(self) -> None:
        """Restore the names of the namespace."""
        remove(self.namespace, self.namespace.keys() - self.names.keys())
        self.namespace.update(self.names)

    def discard(self) -> None:
        """Keep what the cell has done: its effects cannot be undone, so neither may its names, if Ctrl-C comes now."""
        self._discarded = True

    def restore(self) -> None:
        """Restore everything, unless the cell has run to its end."""
        if self._discarded:
            return
        self.restore_names()
        for buffer, array, spec in self._buffers:
            buffer.array, buffer.spec = array, spec
        for tensor, gradient in self.gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        self._modes.restore()


def remove(namespace: dict[str, object], names: Iterable[str]) -> None:
    """Remove names, all in one call."""
    _consume(map(namespace.pop, names, [None] * len(namespace)))


def run_to_completion(action: Callable[[], object]) -> None:
    """Run an action to completion: if Ctrl-C interrupts it, run it again from the start."""
    try:
        action()
    except KeyboardInterrupt:
        action()
        raise
