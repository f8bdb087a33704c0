"""Losses that reach the device as single operators, with their gradients.

An elementwise loss is a pair of functions, the loss and its derivative; all share the same reduction (0 none, 1 mean,
2 sum). torch composes the remaining losses of `torch.nn.functional` from other operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .nondifferentiable import sloped
from .promote import cast, in_opmath, promote
from .registry import lower
from .vjp import vjp

MEAN, SUM = 1, 2


def reduced(losses: jax.Array, reduction: int) -> jax.Array:
    """Losses, their mean or their sum."""
    if reduction == MEAN:
        # The mean of nothing is NaN.
        return jnp.sum(losses) / losses.size if losses.size else jnp.full((), jnp.nan, losses.dtype)
    return jnp.sum(losses) if reduction == SUM else losses


def _spread(grad_output: jax.Array, count: int, reduction: int) -> jax.Array:
    """The gradient of each loss, given that of the reduced one."""
    return grad_output / count if reduction == MEAN and count else grad_output


# -- elementwise -----------------------------------------------------------------------------------


def _smooth_l1(error: jax.Array, beta: jax.Array) -> jax.Array:
    size = jnp.abs(error)
    return jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)


def _smooth_l1_slope(error: jax.Array, beta: jax.Array) -> jax.Array:
    return jnp.where(error <= -beta, -1, jnp.where(error >= beta, 1, error / beta))


def _huber(error: jax.Array, delta: jax.Array) -> jax.Array:
    size = jnp.abs(error)
    return jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))


def _huber_slope(error: jax.Array, delta: jax.Array) -> jax.Array:
    return jnp.clip(error, -delta, delta)


Errors = Callable[..., jax.Array]

# name -> loss and derivative, both of (input - target, parameter)
_OF_ERROR: dict[str, tuple[Errors, Errors]] = {
    "mse_loss": (lambda e: e * e, lambda e: 2 * e),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_slope),
    "huber_loss": (_huber, _huber_slope),
}


def _lower_of_error(name: str, loss: Errors, slope: Errors) -> None:
    @in_opmath
    def forward(self: Any, target: Any, reduction: int = MEAN, *parameter: Any) -> jax.Array:
        self, target = promote(self, target)
        parameters = [cast(p, self.dtype) for p in parameter]
        return reduced(loss(self - target, *parameters), reduction)

    @in_opmath
    def backward(
        grad_output: Any, self: Any, target: Any, reduction: int, *parameter: Any
    ) -> jax.Array:
        grad_output, self, target = promote(grad_output, self, target)
        slopes = slope(self - target, *(cast(p, self.dtype) for p in parameter))
        return slopes * _spread(grad_output, slopes.size, reduction)

    lower(name)(forward)
    lower(f"{name}_backward")(backward)


for _name, (_loss, _slope) in _OF_ERROR.items():
    _lower_of_error(_name, _loss, _slope)


@lower("soft_margin_loss")
@in_opmath
def soft_margin_loss(self: Any, target: Any, reduction: int = MEAN) -> jax.Array:
    self, target = promote(self, target)
    return reduced(jnp.log1p(jnp.exp(-target * self)), reduction)


@lower("soft_margin_loss_backward")
@in_opmath
def soft_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int
) -> jax.Array:
    self, target = promote(self, target)
    slope = -target * jax.nn.sigmoid(-target * self)
    return slope * _spread(grad_output, slope.size, reduction)


def _weighted(x: jax.Array, weight: jax.Array | None) -> jax.Array:
    return x if weight is None else x * weight


@sloped(
    lambda change, _, x, target: change * _cross_entropy_slope(x, target),
    lambda change, _, x, target: change * (jnp.log(1 - x) - jnp.log(x)),
)
def _cross_entropy(x: jax.Array, target: jax.Array) -> jax.Array:
    # torch bounds both logarithms, so that a certain and wrong prediction costs 100, not infinity.
    log_1 = jnp.maximum(jnp.log(x), -100)
    log_0 = jnp.maximum(jnp.log1p(-x), -100)
    return (target - 1) * log_0 - target * log_1


def _cross_entropy_slope(x: jax.Array, target: jax.Array) -> jax.Array:
    return (x - target) / jnp.maximum((1 - x) * x, 1e-12)


@lower("binary_cross_entropy")
@in_opmath
def binary_cross_entropy(
    self: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> jax.Array:
    return reduced(_weighted(_cross_entropy(self, target), weight), reduction)


@lower("binary_cross_entropy_backward")
@in_opmath
def binary_cross_entropy_backward(
    grad_output: Any, self: Any, target: Any, weight: Any = None, reduction: int = MEAN
) -> jax.Array:
    slope = _cross_entropy_slope(self, target)
    return _weighted(slope, weight) * _spread(grad_output, slope.size, reduction)


@lower("binary_cross_entropy_with_logits")
@in_opmath
def binary_cross_entropy_with_logits(
    self: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = MEAN
) -> jax.Array:
    positive = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    losses = (1 - target) * self + positive * jax.nn.softplus(-self)
    return reduced(_weighted(losses, weight), reduction)


# -- negative log likelihood -----------------------------------------------------------------------


def _class_axis(self: jax.Array) -> int:
    return 0 if self.ndim == 1 else 1


def _of_class(x: jax.Array, target: jax.Array, axis: int) -> jax.Array:
    """`x` at the target's class; NaN for an invalid class, where the CPU raises, so that no other class is trained."""
    index = jnp.expand_dims(target, axis)
    found = jnp.take_along_axis(x, index, axis, mode="fill", wrap_negative_indices=False)
    return found.squeeze(axis)


def _class_weights(
    target: jax.Array, weight: jax.Array | None, ignore_index: int, dtype: Any
) -> jax.Array:
    """The weight of each target; 0 for an ignored target, NaN for an invalid class."""
    kept = target != ignore_index
    if weight is None:
        return kept.astype(dtype)
    own = weight.at[jnp.where(kept, target, 0)].get(mode="fill", wrap_negative_indices=False)
    return jnp.where(kept, own, 0)


@lower("nll_loss_forward", "nll_loss2d_forward")
@in_opmath
def nll_loss(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    weights = _class_weights(target, weight, ignore_index, self.dtype)
    index = jnp.where(target == ignore_index, 0, target).astype(jnp.int32)
    chosen = _of_class(self, index, axis)
    # Not a product: an ignored -inf must not become NaN.
    losses = jnp.where(target == ignore_index, 0, -weights * chosen)
    total = jnp.sum(weights)
    if reduction == MEAN:
        return jnp.sum(losses) / total, total
    if reduction == SUM:
        return jnp.sum(losses), total
    return losses, jnp.zeros_like(total)


@lower("nll_loss_backward", "nll_loss2d_backward")
@in_opmath
def nll_loss_backward(
    grad_output: Any,
    self: Any,
    target: Any,
    weight: Any,
    reduction: int,
    ignore_index: int,
    total_weight: Any,
) -> jax.Array:
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    if reduction == MEAN:
        grad_output = grad_output / total_weight
    weights = _class_weights(target, weight, ignore_index, self.dtype)
    grads = jnp.where(target == ignore_index, 0, -weights * grad_output)
    classes = jax.lax.broadcasted_iota(target.dtype, self.shape, axis)
    chosen = classes == jnp.expand_dims(target, axis)
    return jnp.where(chosen, jnp.expand_dims(grads, axis), 0)


# -- margins between classes -----------------------------------------------------------------------


@lower("multi_margin_loss", static=("p",))
@in_opmath
def multi_margin_loss(
    self: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = MEAN
) -> jax.Array:
    rows = self.reshape(-1, self.shape[-1] if self.ndim else 1)
    target = target.reshape(-1, 1)
    own = _of_class(rows, target.reshape(-1), 1)[:, None]
    excess = cast(margin, self.dtype) - own + rows
    losses = jnp.where(excess > 0, excess ** int(p), 0)
    if weight is not None:
        losses *= weight.at[target].get(mode="clip", wrap_negative_indices=False)
    others = jax.lax.broadcasted_iota(target.dtype, rows.shape, 1) != target
    losses = jnp.sum(jnp.where(others, losses, 0), 1) / rows.shape[1]
    return reduced(losses if self.ndim > 1 else losses[0], reduction)


@lower("multi_margin_loss_backward", static=("p",))
@in_opmath
def multi_margin_loss_backward(
    grad_output: Any,
    self: Any,
    target: Any,
    p: Any,
    margin: Any,
    weight: Any = None,
    reduction: int = MEAN,
) -> jax.Array:
    def loss(x: Any) -> jax.Array:
        return multi_margin_loss(x, target, p, margin, weight, reduction)

    return vjp(loss, (self,), grad_output)[0]


def _listed(target: jax.Array) -> jax.Array:
    """Which entries of each row name a class: those before the first -1."""
    return jnp.cumsum(target < 0, 1, dtype=jnp.int32) == 0


def _multilabel_losses(self: jax.Array, target: jax.Array, is_target: jax.Array) -> jax.Array:
    own = jnp.take_along_axis(self, jnp.maximum(target, 0), 1, mode="fill")
    excess = 1 - own[:, :, None] + self[:, None, :]
    counted = _listed(target)[:, :, None] & (is_target == 0)[:, None, :] & (excess > 0)
    return jnp.sum(jnp.where(counted, excess, 0), (1, 2)) / self.shape[1]


@lower("multilabel_margin_loss_forward")
@in_opmath
def multilabel_margin_loss(self: Any, target: Any, reduction: int) -> tuple[jax.Array, jax.Array]:
    columns = self.shape[-1] if self.ndim else 1
    rows, targets = self.reshape(-1, columns), target.reshape(-1, columns)
    classes = jax.lax.broadcasted_iota(targets.dtype, (1, 1, columns), 2)
    named = (targets[:, :, None] == classes) & _listed(targets)[:, :, None]
    is_target = jnp.any(named, 1).astype(self.dtype)
    losses = _multilabel_losses(rows, targets, is_target)
    losses = reduced(losses if self.ndim > 1 else losses[0], reduction)
    return losses, is_target.reshape(target.shape)


@lower("multilabel_margin_loss_backward")
@in_opmath
def multilabel_margin_loss_backward(
    grad_output: Any, self: Any, target: Any, reduction: int, is_target: Any
) -> jax.Array:
    columns = self.shape[-1] if self.ndim else 1

    def loss(x: Any) -> jax.Array:
        rows, targets, named = (a.reshape(-1, columns) for a in (x, target, is_target))
        losses = _multilabel_losses(rows, targets, named)
        return reduced(losses if self.ndim > 1 else losses[0], reduction)

    return vjp(loss, (self,), grad_output)[0]
