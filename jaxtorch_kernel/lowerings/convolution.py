"""Convolutions of one to three dimensions, transposed or not, and their gradients.

Both are one XLA operator: a transposed convolution is a convolution of the input, dilated by the stride, with the
kernel flipped and its channel axes exchanged. JAX knows the transposes of that operator and computes the gradients,
only those that are requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from .dimensions import per_dimension
from .promote import opmath
from .registry import lower
from .types import Array, Gradients
from .vjp import vjp


def _convolve(
    input: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    dtype: DTypeLike | None = None,
) -> Array:
    """A convolution without bias, accumulated and returned in `dtype` if one is given."""
    count = input.ndim - 2
    stride, padding, dilation, output_padding = (
        per_dimension(v, count) for v in (stride, padding, dilation, output_padding)
    )
    _check(input, weight, stride, padding, dilation, transposed, output_padding)
    pads = [(p, p) for p in padding]
    window, inner = stride, [1] * count
    if transposed:
        weight = _exchange_channels(jnp.flip(weight, range(2, weight.ndim)), groups)
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pads = [(r - p, r - p + o) for r, p, o in zip(reach, padding, output_padding, strict=True)]
        window, inner = inner, stride
    spatial = "DHW"[3 - count :]
    return lax.conv_general_dilated(
        input,
        weight,
        window,
        pads,
        lhs_dilation=inner,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
        preferred_element_type=dtype,
    )


def _check(
    input: Array,
    weight: Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
) -> None:
    """Refuse what torch refuses, but XLA would accept or refuse only during compilation.

    Raises:
        ValueError: the arguments are invalid; the user sees the message of the CPU kernel.
    """
    refused = min(stride) < 1 or min(dilation) < 1 or min(padding) < 0 or 0 in weight.shape[2:]
    # torch accepts an empty image if there are no batches or no channels.
    refused |= 0 in input.shape[2:] and 0 not in input.shape[:2]
    if transposed:
        steps = zip(output_padding, stride, dilation, strict=True)
        refused |= any(not 0 <= m < max(s, d) for m, s, d in steps)
    if refused:
        raise ValueError("torch refuses this convolution")


def _exchange_channels(weight: Array, groups: int) -> Array:
    """Reorder (in, out / groups, ...) to (out, in / groups, ...)."""
    if groups == 1:
        return weight.swapaxes(0, 1)
    into, out, *window = weight.shape
    parts = weight.reshape(groups, into // groups, out, *window).swapaxes(1, 2)
    return parts.reshape(groups * out, into // groups, *window)


@lower("convolution", "convolution_overrideable", keeps_format=True)
def convolution(input: Array, weight: Array, bias: Array | None, *options: Any) -> Array:
    """A convolution with `_convolve`'s options: stride, padding, dilation, transposed, output_padding, groups."""
    if bias is not None and bias.ndim != 1:
        raise ValueError("the bias of a convolution is a vector")
    # Without input channels, torch returns no output channels.
    if not input.shape[1] and not options[3]:
        size = jax.eval_shape(lambda: _convolve(input, weight, *options)).shape
        return jnp.zeros((size[0], 0, *size[2:]), input.dtype)
    if bias is None:
        return _convolve(input, weight, *options)
    # Round once, after adding the bias.
    result = _convolve(input, weight, *options, dtype=opmath(input.dtype))
    bias = bias.reshape(-1, *[1] * (input.ndim - 2))
    return (result + bias.astype(result.dtype)).astype(input.dtype)


@lower("convolution_backward_overrideable")
def convolution_gradients(
    grad_output: Array, input: Array, weight: Array, *options_and_mask: Any
) -> Gradients:
    *options, output_mask = options_and_mask
    wants_input, wants_weight, wants_bias = output_mask
    grad_input = grad_weight = grad_bias = None
    if wants_input:
        (grad_input,) = vjp(lambda x: _convolve(x, weight, *options), (input,), grad_output)
    if wants_weight:
        (grad_weight,) = vjp(lambda w: _convolve(input, w, *options), (weight,), grad_output)
    if wants_bias:
        grad_bias = grad_output.sum((0, *range(2, grad_output.ndim)))
    return grad_input, grad_weight, grad_bias


@lower("convolution_backward")
def convolution_backward(
    grad_output: Array,
    input: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    *options_and_mask: Any,
) -> Gradients:
    return convolution_gradients(grad_output, input, weight, *options_and_mask)
