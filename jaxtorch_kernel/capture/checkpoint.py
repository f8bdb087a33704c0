"""`torch.utils.checkpoint` inside captured code: `jax.checkpoint`.

torch's implementation would put the block into the program twice. XLA would recognize the two copies as equal, compute
the block once, and store the activations that the user wants to recompute. With `jax.checkpoint`, XLA keeps them apart.
The random key is an input of the block, so that both runs draw the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import torch
from torch import nn

from ..programs.trees import is_device_tensor, split
from .bodies import Bound, aval_of, call_bodies, trace_body

Tensor = torch.Tensor
# Options of `torch.utils.checkpoint.checkpoint` about how torch recomputes. JAX recomputes here.
_OPTIONS = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "early_stop",
    "preserve_rng_state",
)


def checkpoint(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """`torch.utils.checkpoint.checkpoint(function, *args)` in the open trace."""
    for option in _OPTIONS:
        kwargs.pop(option, None)
    tensors, tree = split((args, kwargs))

    def flat(*tensors: Tensor) -> object:
        args, kwargs = tree.filled(tensors)
        return function(*args, **kwargs)

    buffers = _buffers(function)
    avals = [aval_of(t) for t in tensors]
    body = trace_body(flat, avals, "a checkpointed block", state=buffers)

    def build(
        bodies: list[Bound], key: jax.Array, arrays: list[jax.Array]
    ) -> tuple[list[jax.Array], jax.Array]:
        return jax.checkpoint(bodies[0])(key, *arrays)

    differentiable = [output.differentiable for output in body.outputs] + [False] * len(
        body.written
    )
    operands = [*tensors, *buffers]
    results = call_bodies("checkpoint", build, operands, [body], differentiable, body.flow)
    count = len(body.outputs)
    with torch.no_grad():
        for buffer, value in zip(body.written, results[count:], strict=True):
            buffer.copy_(value)
    return body.result.filled(results[:count])


def _buffers(function: Callable[..., object]) -> list[Tensor]:
    """The registered buffers of the module that is checkpointed: its running statistics may change."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__self__", function)
    if not isinstance(module, nn.Module):
        return []
    return [b for b in module.buffers() if is_device_tensor(b)]
