"""Padding by a constant, by reflection and by repeating the edge, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from .promote import cast, widen
from .registry import lower
from .types import Array, Scalar
from .vjp import transpose

Padding = Callable[[Array, Sequence[int]], Array]


def _widths(ndim: int, pad: Sequence[int]) -> list[tuple[int, int]]:
    """One pair of widths per dimension, from torch's list (two numbers per dimension, the innermost first)."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


@lower("constant_pad_nd")
def constant_pad_nd(self: Array, pad: Sequence[int], value: Scalar = 0) -> Array:
    config = [(low, high, 0) for low, high in _widths(self.ndim, pad)]
    return jax.lax.pad(self, cast(value, self.dtype), config)


def _padder(mode: str) -> Padding:
    """Padding in one of `jnp.pad`'s modes; a negative width removes elements."""

    def padded(self: Array, padding: Sequence[int]) -> Array:
        widths = _widths(self.ndim, padding)
        grown = jnp.pad(self, [(max(low, 0), max(high, 0)) for low, high in widths], mode=mode)
        return grown[
            tuple(
                slice(max(-low, 0), n - max(-high, 0))
                for n, (low, high) in zip(grown.shape, widths, strict=True)
            )
        ]

    return padded


def _register(name: str, forward: Padding) -> None:
    def backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
        (grad,) = widen(grad_output)
        return transpose(lambda x: forward(x, padding), self.shape, grad)

    lower(name, keeps_format=True)(forward)
    lower(f"{name}_backward")(backward)


for _kind, _mode in (("reflection", "reflect"), ("replication", "edge")):
    for _rank in (1, 2, 3):
        _register(f"{_kind}_pad{_rank}d", _padder(_mode))
