"""`torch.utils.checkpoint` inside captured code: `jax.checkpoint`.

torch's implementation would record the block twice; XLA would recognize the two as equal, compute the block once and
keep the activations that were to be dropped. The random key is an input of the block, so that both runs draw the same
numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch import nn

from ..base.torch_private import pytree
from .bodies import aval_of, call_bodies, trace_body
from .results import Output

Tensor = torch.Tensor
# Of `torch.utils.checkpoint.checkpoint`: how to recompute, which is JAX's business here.
_OPTIONS = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
    "preserve_rng_state",
)


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.utils.checkpoint.checkpoint(function, *args)` in the open trace."""
    for option in _OPTIONS:
        kwargs.pop(option, None)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def flat(*given: Tensor) -> Any:
        own = iter(given)
        filled = [next(own) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return function(*args, **kwargs)

    buffers = _buffers(function)
    avals = [aval_of(t) for t in tensors]
    body = trace_body(flat, avals, "a checkpointed block", cells=buffers)

    def build(bodies: list[Any], key: Any, arrays: list[Any]) -> tuple[list[Any], Any]:
        return jax.checkpoint(bodies[0])(key, *arrays)

    differentiable = [output.differentiable for output in body.outputs] + [False] * len(
        body.written
    )
    operands = [*tensors, *buffers]
    results = call_bodies("checkpoint", build, operands, [body], differentiable, body.flow)
    own = iter(results)
    filled = [next(own) if isinstance(leaf, Output) else leaf for leaf in body.leaves]
    with torch.no_grad():
        for buffer, value in zip(body.written, own, strict=True):
            buffer.copy_(value)
    return pytree.tree_unflatten(filled, body.structure)


def _buffers(function: Any) -> list[Tensor]:
    """The buffers of the module that is checkpointed: its running statistics may change."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__self__", function)
    if not isinstance(module, nn.Module):
        return []
    return [b for b in module.buffers() if b.device.type == "jax"]
