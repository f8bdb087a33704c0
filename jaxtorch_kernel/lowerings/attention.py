"""Attention: `scaled_dot_product_attention` as one operation, and the fused layers of `nn.Transformer`.

torch would decompose `scaled_dot_product_attention` into a dozen operators here, because only C++ can add to its table
of fused attention kernels. So the composite has its own kernel, which calls the operator that torch provides for other
devices (`_scaled_dot_product_fused_attention_overrideable`); autograd knows its gradient. The kernel respects torch's
choice of backends (`torch.nn.attention.sdpa_kernel`): with dropout, or without `OVERRIDEABLE`, the operators of the
decomposition run one by one.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from .matmul import product
from .promote import cast, widen
from .registry import lower
from .types import Array, Operand, Pair, Scalar
from .vjp import vjp


def _softmax_parts(logits: Array) -> tuple[Array, Array]:
    """exp(logits - their maximum) and its sum over the last axis; zeros and 1 in a row that is fully masked."""
    highest = jnp.max(logits, -1, keepdims=True, initial=-jnp.inf)
    powers = jnp.exp(logits - jax.lax.stop_gradient(jnp.where(highest == -jnp.inf, 0, highest)))
    total = powers.sum(-1, keepdims=True)
    return powers, jnp.where(total == 0, 1, total)


def _for_heads_of(query: Array, x: Array) -> Array:
    """Keys or values, with each head repeated for the query heads that share it."""
    if min(query.ndim, x.ndim) < 3 or not 1 < x.shape[-3] < query.shape[-3]:
        return x
    return jnp.repeat(x, query.shape[-3] // x.shape[-3], -3)


def attend(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    is_causal: bool = False,
    scale: Operand | None = None,
) -> Array:
    """softmax(query @ key.T * scale + bias) @ value, accumulated and normalized in at least float32.

    Args:
        query: (..., heads, L, E).
        key: (..., heads or a divisor of it, S, E), as is value.
        bias: added to the logits; a bool bias is False where attention is forbidden.
        scale: 1 / sqrt(E) by default.
    """
    key, value = _for_heads_of(query, key), _for_heads_of(query, value)
    wide = widen(query)[0].dtype
    scale = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale
    logits = product(query, key.swapaxes(-1, -2))
    logits = logits * cast(scale, wide)
    if is_causal:
        rows, columns = logits.shape[-2:]
        allowed = jnp.tri(rows, columns, dtype=bool)
        logits = jnp.where(allowed, logits, -jnp.inf)
    if bias is not None and bias.dtype == bool:
        logits = jnp.where(bias, logits, -jnp.inf)
    elif bias is not None:
        logits = logits + bias.astype(wide)
    powers, total = _softmax_parts(logits)
    # Divide last: half types then round the weights before the division, where rounding loses the least.
    sums = product(powers.astype(value.dtype), value)
    return (sums / total).astype(query.dtype)


def attend_backward(
    grad: Array,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: tuple[bool, ...],
    is_causal: bool,
    scale: Scalar | None,
) -> list[Array | None]:
    """The gradients of query, key, value and bias that `mask` asks for, and None for the others."""
    operands = [query, key, value, bias]
    wanted = [i for i, requested in enumerate(mask) if requested]

    def forward(*primals: Array) -> Array:
        inputs: list[Any] = list(operands)
        for i, x in zip(wanted, primals, strict=True):
            inputs[i] = x
        query, key, value, bias = inputs
        return attend(query, key, value, bias, is_causal, scale)

    grads: list[Array | None] = [None] * len(operands)
    primals = tuple(x for i in wanted if (x := operands[i]) is not None)
    for i, g in zip(wanted, vjp(forward, primals, grad), strict=True):
        grads[i] = g
    return grads


# -- the fused layers, which torch uses for evaluation without gradients ---------------------------


def _linear(x: Array, weight: Array, bias: Array) -> Array:
    return (jnp.matmul(x, weight.T) + bias).astype(x.dtype)


def _forbidden(mask: Array, mask_type: int | None, batch: int) -> Array:
    """A mask (True: forbidden), broadcastable to (batch, heads, queries, keys)."""
    mask = mask.astype(bool)
    if mask_type == 1:  # of keys: (batch, keys)
        return mask.reshape(batch, 1, 1, -1)
    return mask if mask.ndim == 4 else mask[None, None]


def _native_attention(
    query: Array,
    key: Array,
    value: Array,
    heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None,
    mask_type: int | None,
) -> Pair:
    batch, width = query.shape[0], query.shape[2]
    projected = []
    weights, biases = jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3)
    for x, w, b in zip((query, key, value), weights, biases, strict=True):
        parts = _linear(x, w, b).reshape(batch, x.shape[1], heads, width // heads)
        projected.append(parts.swapaxes(1, 2))
    q, k, v = projected
    q, k = widen(q, k)
    logits = q @ k.swapaxes(-1, -2) / math.sqrt(width // heads)
    if mask is not None:
        logits = jnp.where(_forbidden(mask, mask_type, batch), -jnp.inf, logits)
    powers, total = _softmax_parts(logits)
    attention = (powers / total).astype(query.dtype)
    joined = (attention @ v).swapaxes(1, 2).reshape(query.shape)
    return _linear(joined, proj_weight, proj_bias), attention


@lower("_native_multi_head_attention", meta=False)
def native_multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    mask: Array | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Array, Array | None]:
    parameters = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    result, weights = _native_attention(query, key, value, num_head, *parameters, mask, mask_type)
    if not need_weights:
        return result, None
    return result, weights.mean(1) if average_attn_weights else weights


def _layer_norm(x: Array, weight: Array, bias: Array, eps: Scalar) -> Array:
    (wide,) = widen(x)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + cast(eps, wide.dtype))
    return (centred * scale * weight + bias).astype(x.dtype)


@lower("_transformer_encoder_layer_fwd", meta=False)
def transformer_encoder_layer(
    src: Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Array,
    qkv_bias: Array,
    proj_weight: Array,
    proj_bias: Array,
    use_gelu: bool,
    norm_first: bool,
    eps: Scalar,
    norm_weight_1: Array,
    norm_bias_1: Array,
    norm_weight_2: Array,
    norm_bias_2: Array,
    ffn_weight_1: Array,
    ffn_bias_1: Array,
    ffn_weight_2: Array,
    ffn_bias_2: Array,
    mask: Array | None = None,
    mask_type: int | None = None,
) -> Array:
    def attention(x: Array) -> Array:
        parameters = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _native_attention(x, x, x, num_heads, *parameters, mask, mask_type)[0]

    def feed_forward(x: Array) -> Array:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        hidden = jax.nn.gelu(hidden, approximate=False) if use_gelu else jnp.maximum(hidden, 0)
        return _linear(hidden, ffn_weight_2, ffn_bias_2)

    def first(x: Array) -> Array:
        return _layer_norm(x, norm_weight_1, norm_bias_1, eps)

    def second(x: Array) -> Array:
        return _layer_norm(x, norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attention(first(src))
        return x + feed_forward(second(x))
    x = first(src + attention(src))
    return second(x + feed_forward(x))
