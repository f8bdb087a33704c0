"""The tensors that a gradient flows to, in a trace that `jax.vjp` will run through.

All other tensors are read as constants (`lax.stop_gradient`). `requires_grad` is not sufficient: within a kernel that
calls other operators, no tensor requires a gradient, because autograd sees the kernel as one operator.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..storage.buffer import buffer_of

Tensor = torch.Tensor


class ActiveTensors:
    """The active tensors of one trace."""

    def __init__(self) -> None:
        # id of a buffer -> the tensor computed into it from inputs with a gradient. Held strongly, because autograd
        # sets the tensor's `requires_grad` only after its kernel has returned.
        self._computed: dict[int, Tensor] = {}
        self._views: dict[int, Tensor] = {}  # id of a tensor -> itself: views of active tensors

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether no gradient flows to a tensor. What a kernel computed from active tensors is not a constant."""
        if tensor.requires_grad:
            return _ends_nowhere(tensor)
        if id(tensor) in self._views:
            return False
        computed = self._computed.get(id(buffer_of(tensor)))
        return computed is None or computed.requires_grad

    def add(self, tensor: Tensor) -> None:
        """Note a tensor that was computed from active tensors."""
        if tensor.is_floating_point() or tensor.is_complex():
            self._computed[id(buffer_of(tensor))] = tensor

    def add_views(self, base: Tensor, views: Tensor | Collection[Tensor]) -> None:
        """Note views, by any operator except `detach`, of a tensor that may be active."""
        if torch.is_grad_enabled() and not self.is_constant(base):
            for view in (views,) if isinstance(views, Tensor) else views:
                self._views[id(view)] = view

    def detach(self, tensor: Tensor) -> None:
        """Forget a tensor that was detached in place."""
        self._views.pop(id(tensor), None)
        self._computed.pop(id(buffer_of(tensor)), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._computed.clear()
        self._views.clear()


def _ends_nowhere(tensor: Tensor) -> bool:
    """Whether a tensor is a view taken under `no_grad`, or a view of such a view.

    Its `requires_grad` is that of its base, but no gradient flows through it.
    """
    base = tensor._base
    if not tensor._is_view() or base is None or not base.requires_grad:
        return False
    node = tensor.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is None
