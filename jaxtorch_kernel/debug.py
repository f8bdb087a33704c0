"""Looking into captured code while it runs: `jaxtorch.debug.print`, as `jax.debug.print`."""

from __future__ import annotations

import builtins
from typing import Any

import jax
import torch

from .dispatch.read import contiguous_array
from .programs import tracing


def print(fmt: str, *args: Any, **kwargs: Any) -> None:
    """Print values, of tensors too, each time that captured code runs.

    `print` in captured code runs once, at the trace, when tensors have no value yet. This one is part of the program:
    under `pure`, `jit`, `scan` and in the cells of `%%pure` and `%%jit` the line appears at every run, from the device,
    perhaps out of order. `torch.jax.synchronize()` waits for it. Elsewhere it prints at once.

    Args:
        fmt: a format string, as `str.format`'s.
        *args: what it is filled with. Tensors of the device appear as arrays (NumPy's format).
        **kwargs: the same by name.

    Example:
        >>> import torch, jaxtorch
        >>> @jaxtorch.pure
        ... def f(x):
        ...     jaxtorch.debug.print("sum {s}, shape {}", tuple(x.shape), s=x.sum())
        ...     return x * 2
        >>> y = f(torch.ones(3, device="jax")); torch.jax.synchronize()
        sum 3.0, shape (3,)
        >>> y = f(torch.zeros(3, device="jax")); torch.jax.synchronize()
        sum 0.0, shape (3,)

    See https://docs.jax.dev/en/latest/debugging/print_breakpoint.html
    """
    values = [_value(a) for a in args]
    named = {name: _value(a) for name, a in kwargs.items()}
    if tracing.active():
        jax.debug.print(fmt, *values, **named)
    else:
        builtins.print(fmt.format(*values, **named))


class _Static:
    """A value that is no tensor, which JAX would take apart into arrays."""

    def __init__(self, value: Any):
        self.value = value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


def _value(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return _Static(leaf) if tracing.active() else leaf
    leaf = leaf.detach()
    if leaf.device.type != "jax":
        return leaf.numpy()
    return contiguous_array(leaf) if tracing.active() else leaf.cpu().numpy()
