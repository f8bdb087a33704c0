"""Layer, group, batch and weight normalization, with their gradients.

All but RMS and weight normalization subtract a mean over some axes and divide by the standard deviation over the same
axes. They differ in the axes, in how the result is scaled, and in whether they keep statistics. The backward operators
use the saved statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from .promote import cast, in_opmath
from .registry import lower
from .types import Array, Scalar

# None for a gradient that is not requested, and for running statistics that do not exist.
Results = tuple[Array | None, ...]


def _statistics(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and (biased) variance over these axes, which are kept."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        x = x * weight
    return x if bias is None else x + bias


def _normalization_gradient(
    grad: Array, normal: Array, rstd: Array, axes: tuple[int, ...]
) -> Array:
    """The gradient of the input of a normalization, from that of its output `normal`."""
    mean = jnp.mean(grad, axes, keepdims=True)
    projected = normal * jnp.mean(grad * normal, axes, keepdims=True)
    return (grad - mean - projected) * rstd


# -- layer normalization ---------------------------------------------------------------------------


@lower("native_layer_norm")
@in_opmath
def layer_norm(
    input: Array,
    normalized_shape: Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: Scalar,
) -> Results:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, variance = _statistics(input, axes)
    rstd = jax.lax.rsqrt(variance + cast(eps, input.dtype))
    return _scaled((input - mean) * rstd, weight, bias), mean, rstd


@lower("native_layer_norm_backward")
@in_opmath
def layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> Results:
    outer = input.ndim - len(normalized_shape)
    rows = tuple(range(outer))
    normal = (input - mean) * rstd
    return (
        _normalization_gradient(
            _scaled(grad_out, weight, None), normal, rstd, tuple(range(outer, input.ndim))
        )
        if output_mask[0]
        else None,
        jnp.sum(grad_out * normal, rows) if output_mask[1] else None,
        jnp.sum(grad_out, rows) if output_mask[2] else None,
    )


@lower("_fused_rms_norm")
@in_opmath
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, eps: Scalar | None
) -> Results:
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    smallest = jnp.finfo(input.dtype).eps if eps is None else cast(eps, input.dtype)
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(input), axes, keepdims=True) + smallest)
    return _scaled(input * rstd, weight, None), rstd


@lower("_fused_rms_norm_backward")
@in_opmath
def rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
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


def _grouped(x: Array, N: int, C: int, HxW: int, group: int) -> Array:
    return x.reshape(N, group, C // group, HxW)


def _per_channel(x: Array | None, C: int, group: int) -> Array | None:
    return None if x is None else x.reshape(1, group, C // group, 1)


@lower("native_group_norm")
@in_opmath
def group_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Scalar,
) -> Results:
    x = _grouped(input, N, C, HxW, group)
    mean, variance = _statistics(x, (2, 3))
    rstd = jax.lax.rsqrt(variance + cast(eps, input.dtype))
    out = _scaled((x - mean) * rstd, _per_channel(weight, C, group), _per_channel(bias, C, group))
    return out.reshape(input.shape), mean.reshape(N, group), rstd.reshape(N, group)


@lower("native_group_norm_backward")
@in_opmath
def group_norm_backward(
    grad_out: Array,
    input: Array,
    mean: Array,
    rstd: Array,
    weight: Array | None,
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
        _normalization_gradient(inner, normal, rstd, (2, 3)).reshape(input.shape)
        if output_mask[0]
        else None,
        jnp.sum(grad * normal, (0, 3)).reshape(C) if output_mask[1] else None,
        jnp.sum(grad, (0, 3)).reshape(C) if output_mask[2] else None,
    )


# -- batch normalization ---------------------------------------------------------------------------


def _channel_axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _channels(x: Array, like: Array) -> Array:
    """A vector with one entry for each channel, reshaped to broadcast with `like`."""
    return x.reshape(1, -1, *(1,) * (like.ndim - 2))


def _optional_channels(x: Array | None, like: Array) -> Array | None:
    return None if x is None else _channels(x, like)


def _normalized(
    input: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array
) -> Array:
    normal = (input - _channels(mean, input)) * _channels(rstd, input)
    return _scaled(normal, _optional_channels(weight, input), _optional_channels(bias, input))


@in_opmath
def _train(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    momentum: Scalar,
    eps: Scalar,
) -> Results:
    """The result, the mean, 1 / deviation, and the updated running statistics (None if there are none)."""
    mean, variance = (s.reshape(-1) for s in _statistics(input, _channel_axes(input)))
    rstd = jax.lax.rsqrt(variance + cast(eps, variance.dtype))
    out = _normalized(input, weight, bias, mean, rstd)
    count = input.size // max(input.shape[1], 1)
    unbiased = variance * (count / max(count - 1, 1))

    def moved(running: Array | None, new: Array) -> Array | None:
        if running is None:
            return None
        rate = cast(momentum, running.dtype)
        return running * (1 - rate) + new * rate

    return out, mean, rstd, moved(running_mean, mean), moved(running_var, unbiased)


@lower("_native_batch_norm_legit_no_training")
@in_opmath
def _evaluate(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: Scalar,
    eps: Scalar,
) -> Results:
    rstd = jax.lax.rsqrt(running_var + cast(eps, running_var.dtype))
    return _normalized(input, weight, bias, running_mean, rstd), running_mean, rstd


@lower("_native_batch_norm_legit", "_native_batch_norm_legit_functional")
def batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> Results:
    arrays = (input, weight, bias, running_mean, running_var)
    if training:
        return _train(*arrays, momentum, eps)
    return *_evaluate(*arrays, momentum, eps), running_mean, running_var


@lower("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    training: bool,
    momentum: Scalar,
    eps: Scalar,
) -> Results:
    return _train(input, weight, bias, None, None, momentum, eps)[:3]


@lower("_batch_norm_with_update", "_batch_norm_with_update_functional")
def batch_norm_with_update(*arguments: object) -> Results:
    out, mean, rstd, *running = _train(*arguments)
    return out, mean, rstd, jnp.zeros((0,), jnp.uint8), *running


@lower("_batch_norm_no_update")
def batch_norm_no_update(*arguments: object) -> Results:
    return *_evaluate(*arguments), jnp.zeros((0,), jnp.uint8)


@lower("native_batch_norm_backward")
@in_opmath
def batch_norm_backward(
    grad_out: Array,
    input: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    save_mean: Array | None,
    save_invstd: Array | None,
    train: bool,
    eps: Scalar,
    output_mask: Sequence[bool],
) -> Results:
    axes = _channel_axes(input)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = save_mean, save_invstd
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = running_mean, jax.lax.rsqrt(running_var + cast(eps, running_var.dtype))
    mean, rstd = _channels(mean, input), _channels(rstd, input)
    normal = (input - mean) * rstd
    grad = _scaled(grad_out, _optional_channels(weight, input), None)
    grad_input = _normalization_gradient(grad, normal, rstd, axes) if train else grad * rstd
    return (
        grad_input if output_mask[0] else None,
        jnp.sum(grad_out * normal, axes) if output_mask[1] else None,
        jnp.sum(grad_out, axes) if output_mask[2] else None,
    )


@lower("batch_norm_backward")
def batch_norm_backward_reserve(*arguments: object) -> Results:
    return batch_norm_backward(*arguments[:-1])


# -- weight normalization --------------------------------------------------------------------------


def _all_but(x: Array, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.ndim) if d != dim)


@lower("_weight_norm_interface")
@in_opmath
def weight_norm(v: Array, g: Array, dim: int = 0) -> Results:
    norms = jnp.sqrt(jnp.sum(jnp.square(v), _all_but(v, dim), keepdims=True))
    return v * (g / norms), norms


@lower("_weight_norm_interface_backward")
@in_opmath
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> Results:
    along = jnp.sum(grad_w * saved_v, _all_but(saved_v, dim), keepdims=True) / saved_norms
    direction = saved_v / saved_norms
    return (grad_w - direction * along) * (saved_g / saved_norms), along
