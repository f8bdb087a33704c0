"""The fused cells of LSTM and GRU: the part of one time step after its two matrix products.

A cell stores its gates in a `workspace`, so that the gradient does not recompute them. torch calls these operators only
on accelerators, and each device chooses the layout of its workspace.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .promote import widen
from .registry import lower
from .types import Array, Gradients


def _gates(gates: Array, bias: Array | None, parts: int) -> list[Array]:
    (gates,) = widen(gates)
    if bias is not None:
        gates = gates + widen(bias)[0]
    return jnp.split(gates, parts, axis=1)


@lower("_thnn_fused_lstm_cell", meta=False)
def lstm_cell(
    input_gates: Array,
    hidden_gates: Array,
    cx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    dtype = cx.dtype
    (wide,) = widen(cx)
    from_input = _gates(input_gates, input_bias, 4)
    from_hidden = _gates(hidden_gates, hidden_bias, 4)
    i, f, g, o = (a + b for a, b in zip(from_input, from_hidden, strict=True))
    i, f, o = map(jax.nn.sigmoid, (i, f, o))
    g = jnp.tanh(g)
    cy = f * wide + i * g
    hy = o * jnp.tanh(cy)
    workspace = jnp.concatenate([i, f, g, o], axis=1)
    return hy.astype(dtype), cy.astype(dtype), workspace.astype(dtype)


@lower("_thnn_fused_lstm_cell_backward_impl", meta=False)
def lstm_cell_backward(
    grad_hy: Array | None,
    grad_cy: Array | None,
    cx: Array,
    cy: Array,
    workspace: Array,
    has_bias: bool,
) -> Gradients:
    dtype = cx.dtype
    cx, cy, workspace = widen(cx, cy, workspace)
    grad_hy, grad_cy = widen(grad_hy, grad_cy)
    i, f, g, o = jnp.split(workspace, 4, axis=1)
    tanh_cy = jnp.tanh(cy)
    grad_hy = jnp.zeros_like(cy) if grad_hy is None else grad_hy
    grad = grad_hy * o * (1 - tanh_cy * tanh_cy)
    grad = grad if grad_cy is None else grad + grad_cy
    grads = [
        grad * g * i * (1 - i),
        grad * cx * f * (1 - f),
        grad * i * (1 - g * g),
        grad_hy * tanh_cy * o * (1 - o),
    ]
    grad_gates = jnp.concatenate(grads, axis=1)
    grad_bias = grad_gates.sum(0).astype(dtype) if has_bias else None
    return grad_gates.astype(dtype), (grad * f).astype(dtype), grad_bias


@lower("_thnn_fused_gru_cell", meta=False)
def gru_cell(
    input_gates: Array,
    hidden_gates: Array,
    hx: Array,
    input_bias: Array | None = None,
    hidden_bias: Array | None = None,
) -> tuple[Array, Array]:
    dtype = hx.dtype
    (wide,) = widen(hx)
    reset_i, update_i, new_i = _gates(input_gates, input_bias, 3)
    reset_h, update_h, new_h = _gates(hidden_gates, hidden_bias, 3)
    reset, update = jax.nn.sigmoid(reset_i + reset_h), jax.nn.sigmoid(update_i + update_h)
    new = jnp.tanh(new_i + reset * new_h)
    hy = new + update * (wide - new)
    workspace = jnp.concatenate([reset, update, new, wide, new_h], axis=1)
    return hy.astype(dtype), workspace.astype(dtype)


@lower("_thnn_fused_gru_cell_backward", meta=False)
def gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> Gradients:
    dtype = workspace.dtype
    grad_hy, workspace = widen(grad_hy, workspace)
    reset, update, new, hx, new_h = jnp.split(workspace, 5, axis=1)
    grad_new = grad_hy * (1 - update) * (1 - new * new)
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_reset = grad_new * new_h * reset * (1 - reset)
    grad_input = jnp.concatenate([grad_reset, grad_update, grad_new], axis=1)
    grad_hidden = jnp.concatenate([grad_reset, grad_update, grad_new * reset], axis=1)
    bias = [g.sum(0).astype(dtype) if has_bias else None for g in (grad_input, grad_hidden)]
    return (
        grad_input.astype(dtype),
        grad_hidden.astype(dtype),
        (grad_hy * update).astype(dtype),
        bias[0],
        bias[1],
    )
