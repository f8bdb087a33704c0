"""The trace of a user's torch code: the contexts that hold while the code runs, and the tensors over its inputs.

`pure`, `jit`, the bodies of control flow and `jax_view` all trace code of the user's. They open the same contexts:
scopes that name modules in the HLO, torch's autograd in one thread, and replacements of the methods of torch that work
differently inside captured code. A nested trace runs inside most of these contexts already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import jax
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop

from ..base import torch_changes
from ..programs import width
from ..programs.tracing import Trace
from ..storage.buffer import buffer_of, tensor_over
from . import saving
from .distributions import unchecked
from .inlined import inlined
from .intercepted import intercepted
from .one_thread import one_thread
from .scopes import named

Tensor = torch.Tensor


class CodeTrace(Trace):
    """One run of the user's torch code over tracers."""

    def contexts(self) -> Iterator[AbstractContextManager[object]]:
        yield width.of_torch()
        if self.parent is None:
            yield named(self)
            yield saving.open_trace()
            yield one_thread()
            yield torch_changes.compiling.applied()
            yield unchecked.applied()
            yield inlined()
            # Hooks that put something back after a module's call need its end; XLA drops what nothing needs.
            yield set_checkpoint_early_stop(False)
        if self.differentiable:
            yield intercepted.applied()

    def input_over(self, array: jax.Array) -> Tensor:
        """A tensor over an argument of the traced function.

        It is not a leaf, so that the code may write to it. A gradient flows to it, unless gradients are off or its
        dtype has none.
        """
        tensor = tensor_over(array)
        self.add_created(buffer_of(tensor))
        differentiable = tensor.is_floating_point() or tensor.is_complex()
        if differentiable and torch.is_grad_enabled():
            return tensor.requires_grad_().clone()
        return tensor
