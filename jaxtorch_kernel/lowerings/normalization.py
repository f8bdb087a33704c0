"""Layer, group, batch and weight normalization, with their gradients.

All subtract a mean over some axes and divide by a standard deviation over the same axes. They differ in the axes, in
how the result is scaled, and in whether they keep statistics. The backward operators use the saved statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .promote import cast, in_opmath
from .registry import lower

Results = tuple[Any, ...]


def _statistics(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Mean and (biased) variance over these axes, which are kept."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _scaled(x: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _through(grad: jax.Array, normal: jax.Array, rstd: jax.Array, axes: Any) -> jax.Array:
    """The gradient of what was normalized, given that of the normalized values `normal`."""
    mean = jnp.mean(grad, axes, keepdims=True)
    projected = normal * jnp.mean(grad * normal, axes, keepdims=True)
    return (grad - mean - projected) * rstd


# -- layer normalization ---------------------------------------------------------------------------


@lower("native_layer_norm")
@in_opmath
def layer_norm(
    input: Any, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: Any
) -> Results:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, variance = _statistics(input, axes)
    rstd = jax.lax.rsqrt(variance + cast(eps, input.dtype))
    return _scaled((input - mean) * rstd, weight, bias), mean, rstd


@lower("native_layer_norm_backward")
@in_opmath
def layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[int],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> Results:
    outer = input.ndim - len(normalized_shape)
    rows = tuple(range(outer))
    normal = (input - mean) * rstd
    return (
        _through(_scaled(grad_out, weight, None), normal, rstd, tuple(range(outer, input.ndim)))
        if output_mask[0]
        else None,
        jnp.sum(grad_out * normal, rows) if output_mask[1] else None,
        jnp.sum(grad_out, rows) if output_mask[2] else None,
    )


@lower("_fused_rms_norm")
@in_opmath
def rms_norm(input: Any, normalized_shape: Sequence[int], weight: Any, eps: Any) -> Results:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    smallest = jnp.finfo(input.dtype).eps if eps is None else cast(eps, input.dtype)
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(input), axes, keepdims=True) + smallest)
    return _scaled(input * rstd, weight, None), rstd


@lower("_fused_rms_norm_backward")
@in_opmath
def rms_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[int],
    rstd: Any,
    weight: Any,
    output_mask: Sequence[bool],
) -> Results:
    outer = input.ndim - len(normalized_shape)
    axes = tuple(range(outer, input.ndim))
    normal = input * rstd
    grad = _scaled(grad_out, weight, None)
    return (
        (grad - normal * jnp.mean(grad * normal, axes, keepdims=True)) * rstd
        if output_mask[0]
        else None,
        jnp.sum(grad_out * normal, tuple(range(outer))) if output_mask[1] else None,
    )


# -- group normalization ---------------------------------------------------------------------------


def _grouped(x: jax.Array, N: int, C: int, HxW: int, group: int) -> jax.Array:
    return x.reshape(N, group, C // group, HxW)


def _per_channel(x: jax.Array | None, C: int, group: int) -> jax.Array | None:
    return None if x is None else x.reshape(1, group, C // group, 1)


@lower("native_group_norm")
@in_opmath
def group_norm(
    input: Any, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int, eps: Any
) -> Results:
    x = _grouped(input, N, C, HxW, group)
    mean, variance = _statistics(x, (2, 3))
    rstd = jax.lax.rsqrt(variance + cast(eps, input.dtype))
    out = _scaled((x - mean) * rstd, _per_channel(weight, C, group), _per_channel(bias, C, group))
    return out.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lower("native_group_norm_backward")
@in_opmath
def group_norm_backward(
    grad_out: Any,
    input: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Results:
    x, grad = (_grouped(a, N, C, HxW, group) for a in (input, grad_out))
    rstd = rstd.reshape(N, group, 1, 1)
    normal = (x - mean.reshape(N, group, 1, 1)) * rstd
    inner = _scaled(grad, _per_channel(weight, C, group), None)
    return (
        _through(inner, normal, rstd, (2, 3)).reshape(input.shape) if output_mask[0] else None,
        jnp.sum(grad * normal, (0, 3)).reshape(C) if output_mask[1] else None,
        jnp.sum(grad, (0, 3)).reshape(C) if output_mask[2] else None,
    )


# -- batch normalization ---------------------------------------------------------------------------


def _channel_axes(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channels(x: Any, like: jax.Array) -> Any:
    """A vector with one entry for each channel, to broadcast against `like`."""
    return None if x is None else x.reshape(1, -1, *(1,) * (like.ndim - 2))


def _normalized(input: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> jax.Array:
    mean, rstd, weight, bias = (_channels(a, input) for a in (mean, rstd, weight, bias))
    return _scaled((input - mean) * rstd, weight, bias)


@in_opmath
def _train(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> Results:
    """The result, mean, 1 / deviation, and the running statistics after this batch (None without them)."""
    mean, variance = (s.reshape(-1) for s in _statistics(input, _channel_axes(input)))
    rstd = jax.lax.rsqrt(variance + cast(eps, variance.dtype))
    out = _normalized(input, weight, bias, mean, rstd)
    count = input.size // max(input.shape[1], 1)
    unbiased = variance * (count / max(count - 1, 1))

    def moved(running: Any, new: jax.Array) -> Any:
        if running is None:
            return None
        rate = cast(momentum, running.dtype)
        return running * (1 - rate) + new * rate

    return out, mean, rstd, moved(running_mean, mean), moved(running_var, unbiased)


@lower("_native_batch_norm_legit_no_training")
@in_opmath
def _evaluate(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any, eps: Any
) -> Results:
    rstd = jax.lax.rsqrt(running_var + cast(eps, running_var.dtype))
    return _normalized(input, weight, bias, running_mean, rstd), running_mean, rstd


@lower("_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def batch_norm(
    input: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: Any,
    eps: Any,
) -> Results:
    arrays = (input, weight, bias, running_mean, running_var)
    if training:
        return _train(*arrays, momentum, eps)
    return *_evaluate(*arrays, momentum, eps), running_mean, running_var


@lower("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Any, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any
) -> Results:
    return _train(input, weight, bias, None, None, momentum, eps)[:3]


@lower("_batch_norm_with_update", "_batch_norm_with_update_functional")
def batch_norm_with_update(*arguments: Any) -> Results:
    out, mean, rstd, *running = _train(*arguments)
    return out, mean, rstd, jnp.zeros((0,), jnp.uint8), *running


@lower("_batch_norm_no_update")
def batch_norm_no_update(*arguments: Any) -> Results:
    return *_evaluate(*arguments), jnp.zeros((0,), jnp.uint8)


@lower("native_batch_norm_backward")
@in_opmath
def batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> Results:
    axes = _channel_axes(input)
    mean, rstd = save_mean, save_invstd
    if not train:
        mean, rstd = running_mean, jax.lax.rsqrt(running_var + cast(eps, running_var.dtype))
    mean, rstd, weight = (_channels(a, input) for a in (mean, rstd, weight))
    normal = (input - mean) * rstd
    grad = _scaled(grad_out, weight, None)
    grad_input = _through(grad, normal, rstd, axes) if train else grad * rstd
    return (
        grad_input if output_mask[0] else None,
        jnp.sum(grad_out * normal, axes) if output_mask[1] else None,
        jnp.sum(grad_out, axes) if output_mask[2] else None,
    )


@lower("batch_norm_backward")
def batch_norm_backward_reserve(*arguments: Any) -> Results:
    return batch_norm_backward(*arguments[:-1])


# -- weight normalization --------------------------------------------------------------------------


def _all_but(x: jax.Array, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != dim)


@lower("_weight_norm_interface")
@in_opmath
def weight_norm(v: Any, g: Any, dim: int = 0) -> Results:
    norms = jnp.sqrt(jnp.sum(jnp.square(v), _all_but(v, dim), keepdims=True))
    return v * (g / norms), norms


@lower("_weight_norm_interface_backward")
@in_opmath
def weight_norm_backward(
    grad_w: Any, saved_v: Any, saved_g: Any, saved_norms: Any, dim: int
) -> Results:
    along = jnp.sum(grad_w * saved_v, _all_but(saved_v, dim), keepdims=True) / saved_norms
    direction = saved_v / saved_norms
    return (grad_w - direction * along) * (saved_g / saved_norms), along
