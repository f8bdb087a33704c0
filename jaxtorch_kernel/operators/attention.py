"""`scaled_dot_product_attention`, and the operators that torch's fused attention requires of a backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from ..base import torch_private as private
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..lowerings.attention import attend, attend_backward
from ..lowerings.registry import Lowering

Tensor = torch.Tensor
Size = tuple[int, ...]

_forward = Operation(None, Lowering(attend), name="scaled_dot_product_attention")


_backward = Operation(None, Lowering(attend_backward), name="scaled_dot_product_attention_backward")


@kernel("_scaled_dot_product_fused_attention_overrideable")
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[object, ...]:
    """The attention. The residuals for torch's autograd are None, because the backward recomputes them."""
    if dropout_p:
        raise RuntimeError(
            "fused attention on the jax device does not support dropout: use dropout_p=0.0"
        )
    out = _forward(query, key, value, attn_bias, is_causal, scale)
    return out, None, None, None, query.shape[-2], key.shape[-2], None, None, None


@kernel("_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    grad_out: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: Sequence[bool],
    *residuals: object,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of query, key, value and bias. `is_causal` is the eighth of the arguments after the mask."""
    if grad_out is None:  # a gradient of the other results was requested, and they have none
        return None, None, None, None
    is_causal = residuals[7]
    mask = tuple(grad_input_mask)
    return tuple(_backward(grad_out, query, key, value, attn_bias, mask, is_causal, scale))


@kernel("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The composite, as one operator where that is possible."""
    _validate(query, key, value, attn_mask, is_causal)
    mask_size = None if attn_mask is None else tuple(attn_mask.shape)
    _check_sizes(tuple(query.shape), tuple(key.shape), tuple(value.shape), mask_size, enable_gqa)
    # The decomposition raises torch's errors for integers and complex numbers.
    fused = query.is_floating_point() and private.fused_attention_enabled()
    if fused and not dropout_p:
        result = torch.ops.aten._scaled_dot_product_fused_attention_overrideable(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale
        )
    else:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            allowed = torch.zeros_like(attn_mask, dtype=query.dtype)
            attn_mask = allowed.masked_fill(~attn_mask, -math.inf)
        result = torch.ops.aten._scaled_dot_product_attention_math(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
    return result[0]


def _validate(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> None:
    """torch's own checks, repeated here because the device's kernel bypasses them."""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got "
            f"query.dtype: {query.dtype}, key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be at least 2 dimensional, but got "
            f"{query.dim()}, {key.dim()} and {value.dim()} dimensions instead."
        )
    if mask is not None and mask.dtype not in (torch.bool, query.dtype):
        raise RuntimeError(
            f"Expected attn_mask dtype to be bool or to match query dtype, but got {mask.dtype} and "
            f"query.dtype: {query.dtype} instead."
        )
    if mask is not None and causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")


@lru_cache(4096)
def _check_sizes(query: Size, key: Size, value: Size, mask: Size | None, enable_gqa: bool) -> None:
    """Raise for sizes that do not fit together. The lowering repeats heads of keys, also without `enable_gqa`."""
    if query[-1] != key[-1]:
        raise _mismatch("query and key", "last", query, key)
    if key[-2] != value[-2]:
        raise _mismatch("key and value", "second last", key, value)
    if enable_gqa:
        if min(map(len, (query, key, value))) < 3:
            raise IndexError("enable_gqa=True needs a dimension of heads, the third last")
        if any(not heads or query[-3] % heads for heads in (key[-3], value[-3])):
            raise RuntimeError(
                "Number of heads in key and value must divide the number of heads in query, but got "
                f"{query[-3]}, {key[-3]} and {value[-3]} for query, key and value."
            )
        key, value = ((*x[:-3], query[-3], *x[-2:]) for x in (key, value))
    weights = (*_broadcast("query and key", query[:-2], key[:-2]), query[-2], key[-2])
    if mask is not None and _broadcast("scores and attn_mask", weights, mask) != weights:
        raise RuntimeError(
            f"attn_mask of shape {[*mask]} has more dimensions than the scores, {[*weights]}"
        )
    _broadcast("query and value", weights[:-2], value[:-2])


def _broadcast(names: str, a: Size, b: Size) -> Size:
    """The size that both have together; torch's error if there is none."""
    for i, (m, n) in enumerate(zip(reversed(a), reversed(b), strict=False), 1):
        if m != n and 1 not in (m, n):
            raise RuntimeError(
                f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension "
                f"{max(len(a), len(b)) - i} ({names} of scaled_dot_product_attention)"
            )
    return tuple(torch.broadcast_shapes(a, b))


def _mismatch(names: str, which: str, a: Size, b: Size) -> Exception:
    return RuntimeError(
        f"scaled_dot_product_attention: {names} must have the same {which} size, but have the shapes {[*a]} and {[*b]}"
    )


@kernel("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """False, so that `nn.TransformerEncoder` keeps padded batches: the device has no nested tensors."""
    return False
