"""Losses that reach the device as single operators, with their gradients.

An elementwise loss is a pair of functions, the loss and its derivative. All share the same reduction (0 none, 1 mean,
2 sum). torch composes the other losses of `torch.nn.functional` from other operators.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .nondifferentiable import with_derivatives
from .promote import cast, in_opmath, promote
from .registry import lower
from .types import Array, Function, Operand, Scalar
from .vjp import vjp

MEAN, SUM = 1, 2


def reduced(losses: Array, reduction: int) -> Array:
    """The losses, their mean, or their sum."""
    if reduction == MEAN:
        # The mean of no elements is NaN.
        return jnp.sum(losses) / losses.size if losses.size else jnp.full((), jnp.nan, losses.dtype)
    return jnp.sum(losses) if reduction == SUM else losses


def _unreduced(grad_output: Array, count: int, reduction: int) -> Array:
    """The gradient of each loss, from that of the reduced loss."""
    return grad_output / count if reduction == MEAN and count else grad_output


# -- elementwise -----------------------------------------------------------------------------------


def _smooth_l1(error: Array, beta: Array) -> Array:
    size = jnp.abs(error)
    return jnp.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta)


def _smooth_l1_derivative(error: Array, beta: Array) -> Array:
    return jnp.where(error <= -beta, -1, jnp.where(error >= beta, 1, error / beta))


def _huber(error: Array, delta: Array) -> Array:
    size = jnp.abs(error)
    return jnp.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))


def _huber_derivative(error: Array, delta: Array) -> Array:
    return jnp.clip(error, -delta, delta)


Errors = Function  # of (input - target, parameter)

# name -> loss and derivative
_OF_ERROR: dict[str, tuple[Errors, Errors]] = {
    "mse_loss": (lambda e: e * e, lambda e: 2 * e),
    "smooth_l1_loss": (_smooth_l1, _smooth_l1_derivative),
    "huber_loss": (_huber, _huber_derivative),
}


def _lower_of_error(name: str, loss: Errors, derivative: Errors) -> None:
    @in_opmath
    def forward(self: Operand, target: Operand, reduction: int = MEAN, *parameter: Scalar) -> Array:
        self, target = promote(self, target)
        parameters = [cast(p, self.dtype) for p in parameter]
        return reduced(loss(self - target, *parameters), reduction)

    @in_opmath
    def backward(
        grad_output: Operand, self: Operand, target: Operand, reduction: int, *parameter: Scalar
    ) -> Array:
        grad_output, self, target = promote(grad_output, self, target)
        derivatives = derivative(self - target, *(cast(p, self.dtype) for p in parameter))
        return derivatives * _unreduced(grad_output, derivatives.size, reduction)

    lower(name)(forward)
    lower(f"{name}_backward")(backward)


for _name, (_loss, _slope) in _OF_ERROR.items():
    _lower_of_error(_name, _loss, _slope)


@lower("soft_margin_loss")
@in_opmath
def soft_margin_loss(self: Operand, target: Operand, reduction: int = MEAN) -> Array:
    self, target = promote(self, target)
    return reduced(jnp.log1p(jnp.exp(-target * self)), reduction)


@lower("soft_margin_loss_backward")
@in_opmath
def soft_margin_loss_backward(
    grad_output: Array, self: Operand, target: Operand, reduction: int
) -> Array:
    self, target = promote(self, target)
    derivative = -target * jax.nn.sigmoid(-target * self)
    return derivative * _unreduced(grad_output, derivative.size, reduction)


def _weighted(x: Array, weight: Array | None) -> Array:
    return x if weight is None else x * weight


@with_derivatives(
    lambda tangent, _, x, target: tangent * _cross_entropy_derivative(x, target),
    lambda tangent, _, x, target: tangent * (jnp.log(1 - x) - jnp.log(x)),
)
def _cross_entropy(x: Array, target: Array) -> Array:
    # torch bounds both logarithms, so that a prediction that is certain and wrong costs 100 and not infinity.
    log_1 = jnp.maximum(jnp.log(x), -100)
    log_0 = jnp.maximum(jnp.log1p(-x), -100)
    return (target - 1) * log_0 - target * log_1


def _cross_entropy_derivative(x: Array, target: Array) -> Array:
    return (x - target) / jnp.maximum((1 - x) * x, 1e-12)


@lower("binary_cross_entropy")
@in_opmath
def binary_cross_entropy(
    self: Array, target: Array, weight: Array | None = None, reduction: int = MEAN
) -> Array:
    return reduced(_weighted(_cross_entropy(self, target), weight), reduction)


@lower("binary_cross_entropy_backward")
@in_opmath
def binary_cross_entropy_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    derivative = _cross_entropy_derivative(self, target)
    return _weighted(derivative, weight) * _unreduced(grad_output, derivative.size, reduction)


@lower("binary_cross_entropy_with_logits")
@in_opmath
def binary_cross_entropy_with_logits(
    self: Array,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    positive = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    losses = (1 - target) * self + positive * jax.nn.softplus(-self)
    return reduced(_weighted(losses, weight), reduction)


# -- negative log likelihood -----------------------------------------------------------------------


def _class_axis(self: Array) -> int:
    return 0 if self.ndim == 1 else 1


def _of_class(x: Array, target: Array, axis: int) -> Array:
    """`x` at the target's class; NaN for an invalid class (the CPU raises), so that no other class is trained."""
    index = jnp.expand_dims(target, axis)
    chosen = jnp.take_along_axis(x, index, axis, mode="fill", wrap_negative_indices=False)
    return chosen.squeeze(axis)


def _class_weights(
    target: Array, weight: Array | None, ignore_index: int, dtype: DTypeLike
) -> Array:
    """The weight of each target: 0 for an ignored target, NaN for an invalid class."""
    counted = target != ignore_index
    if weight is None:
        return counted.astype(dtype)
    index = jnp.where(counted, target, 0)
    return jnp.where(counted, weight.at[index].get(mode="fill", wrap_negative_indices=False), 0)


@lower("nll_loss_forward", "nll_loss2d_forward")
@in_opmath
def nll_loss(
    self: Array, target: Array, weight: Array | None, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    weights = _class_weights(target, weight, ignore_index, self.dtype)
    index = jnp.where(target == ignore_index, 0, target).astype(jnp.int32)
    chosen = _of_class(self, index, axis)
    # `where` instead of a product: an ignored -inf must not become NaN.
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
    grad_output: Array,
    self: Array,
    target: Array,
    weight: Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: Array,
) -> Array:
    axis = _class_axis(self)
    target = target.reshape(self.shape[:axis] + self.shape[axis + 1 :])
    if reduction == MEAN:
        grad_output = grad_output / total_weight
    weights = _class_weights(target, weight, ignore_index, self.dtype)
    grads = jnp.where(target == ignore_index, 0, -weights * grad_output)
    # 32 bits hold a class. A TPU would compare 64 of them for each class of each element, in halves.
    classes = jax.lax.broadcasted_iota(np.int32, self.shape, axis)
    chosen = classes == jnp.expand_dims(target.astype(np.int32), axis)
    return jnp.where(chosen, jnp.expand_dims(grads, axis), 0)


# -- margins between classes -----------------------------------------------------------------------


@lower("multi_margin_loss", static=("p",))
@in_opmath
def multi_margin_loss(
    self: Array,
    target: Array,
    p: float = 1,
    margin: Scalar = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    rows = self.reshape(-1, self.shape[-1] if self.ndim else 1)
    target = target.reshape(-1, 1)
    score = _of_class(rows, target.reshape(-1), 1)[:, None]
    excess = cast(margin, self.dtype) - score + rows
    losses = jnp.where(excess > 0, excess ** int(p), 0)
    if weight is not None:
        losses *= weight.at[target].get(mode="clip", wrap_negative_indices=False)
    others = jax.lax.broadcasted_iota(target.dtype, rows.shape, 1) != target
    losses = jnp.sum(jnp.where(others, losses, 0), 1) / rows.shape[1]
    return reduced(losses if self.ndim > 1 else losses[0], reduction)


@lower("multi_margin_loss_backward", static=("p",))
@in_opmath
def multi_margin_loss_backward(
    grad_output: Array,
    self: Array,
    target: Array,
    p: float,
    margin: Scalar,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    def loss(x: Array) -> Array:
        return multi_margin_loss(x, target, p, margin, weight, reduction)

    return vjp(loss, (self,), grad_output)[0]


def _listed(target: Array) -> Array:
    """Which entries of each row are classes: those before the first -1."""
    return jnp.cumsum(target < 0, 1, dtype=jnp.int32) == 0


def _multilabel_losses(self: Array, target: Array, is_target: Array) -> Array:
    scores = jnp.take_along_axis(self, jnp.maximum(target, 0), 1, mode="fill")
    excess = 1 - scores[:, :, None] + self[:, None, :]
    counted = _listed(target)[:, :, None] & (is_target == 0)[:, None, :] & (excess > 0)
    return jnp.sum(jnp.where(counted, excess, 0), (1, 2)) / self.shape[1]


@lower("multilabel_margin_loss_forward")
@in_opmath
def multilabel_margin_loss(self: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    columns = self.shape[-1] if self.ndim else 1
    rows, targets = self.reshape(-1, columns), target.reshape(-1, columns)
    classes = jax.lax.broadcasted_iota(targets.dtype, (1, 1, columns), 2)
    matches = (targets[:, :, None] == classes) & _listed(targets)[:, :, None]
    is_target = jnp.any(matches, 1).astype(self.dtype)
    losses = _multilabel_losses(rows, targets, is_target)
    losses = reduced(losses if self.ndim > 1 else losses[0], reduction)
    return losses, is_target.reshape(target.shape)


@lower("multilabel_margin_loss_backward")
@in_opmath
def multilabel_margin_loss_backward(
    grad_output: Array, self: Array, target: Array, reduction: int, is_target: Array
) -> Array:
    columns = self.shape[-1] if self.ndim else 1

    def loss(x: Array) -> Array:
        losses = _multilabel_losses(*(a.reshape(-1, columns) for a in (x, target, is_target)))
        return reduced(losses if self.ndim > 1 else losses[0], reduction)

    return vjp(loss, (self,), grad_output)[0]
