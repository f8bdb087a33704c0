"""Printing from captured code while it runs: `jaxtorch.debug.print`, like `jax.debug.print`."""

from __future__ import annotations

import builtins
from typing import Any

import jax
import torch

from .dispatch.read import contiguous_array
from .programs import tracing


def print(fmt: str, *args: Any, **kwargs: Any) -> None:
    """Print values, including those of tensors, each time that captured code runs.

    `print` in captured code runs once, during tracing, when tensors have no value yet. This function is part of the
    program: under `pure`, `jit`, `scan` and in `%%pure` and `%%jit` cells the line is printed at every run, from the
    device, possibly out of order. `torch.jax.synchronize()` waits for it. Elsewhere it prints immediately.

    Args:
        fmt: a format string, as for `str.format`.
        *args: the values to format. Tensors on the device are printed as arrays (in NumPy's format).
        **kwargs: named values to format.

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


def print_operator(format_str: str, *args: object, **kwargs: object) -> None:
    """`torch._higher_order_ops.print`: like `print` above in captured code, like torch's own elsewhere."""
    if tracing.active():
        print(format_str, *args, **kwargs)
    else:
        builtins.print(format_str.format(*args, **kwargs))


class _Static:
    """A value other than a tensor, which JAX would otherwise flatten into arrays."""

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
