"""`scaled_dot_product_attention`, and the operators that torch's fused attention requires of a backend."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..base import torch_private as private
from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..lowerings.attention import attend, attend_backward
from ..lowerings.registry import Lowering

Tensor = torch.Tensor


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


@kernel("_nested_tensor_from_mask_left_aligned")
def nested_tensor_from_mask_left_aligned(t: Tensor, mask: Tensor) -> bool:
    """False, so that `nn.TransformerEncoder` keeps padded batches: the device has no nested tensors."""
    return False
