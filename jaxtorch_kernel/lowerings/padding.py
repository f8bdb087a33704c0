"""Padding by a constant, by reflection and by repeating the edge, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, widen
from .registry import lower
from .vjp import transpose


def _widths(ndim: int, pad: Any) -> list[tuple[int, int]]:
    """torch's pad list (innermost dimension first, two numbers each) as one pair per dimension."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (ndim - len(pairs)) + pairs[::-1]


@lower("constant_pad_nd")
def constant_pad_nd(self: Any, pad: Any, value: Any = 0) -> jax.Array:
    config = [(low, high, 0) for low, high in _widths(self.ndim, pad)]
    return jax.lax.pad(self, cast(value, self.dtype), config)


def _padder(mode: str) -> Callable[[Any, Any], jax.Array]:
    """Padding in one of `jnp.pad`'s modes; a negative width cuts."""

    def padded(self: Any, padding: Any) -> jax.Array:
        widths = _widths(self.ndim, padding)
        grown = jnp.pad(self, [(max(low, 0), max(high, 0)) for low, high in widths], mode=mode)
        return grown[
            tuple(
                slice(max(-low, 0), n - max(-high, 0))
                for n, (low, high) in zip(grown.shape, widths, strict=True)
            )
        ]

    return padded


def _register(name: str, forward: Callable[[Any, Any], jax.Array]) -> None:
    def backward(grad_output: Any, self: Any, padding: Any) -> jax.Array:
        (grad,) = widen(grad_output)
        return transpose(lambda x: forward(x, padding), self.shape, grad)

    lower(name, keeps_format=True)(forward)
    lower(f"{name}_backward")(backward)


for _kind, _mode in (("reflection", "reflect"), ("replication", "edge")):
    for _rank in (1, 2, 3):
        _register(f"{_kind}_pad{_rank}d", _padder(_mode))
