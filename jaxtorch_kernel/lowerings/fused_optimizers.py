"""Fused optimizer steps and gradient scaling: all parameters, gradients and states in one program.

An optimizer is a rule for one parameter, in opmath; `_step` applies it to each parameter. Every list is written in
place, including the gradients (which are unscaled). If `found_inf` is set, nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..storage.dtypes import row_of
from .promote import cast, widen
from .registry import lower
from .types import Array, Number, Operand, Scalar

Arrays = list[Array]
# (parameter, gradient, states..., values that are only read...) -> (new parameter, new states...)
Rule = Callable[..., tuple[Array, ...]]


def _step(
    rule: Rule,
    lists: tuple[Arrays, ...],
    maximize: bool,
    grad_scale: Operand | None,
    found_inf: Operand | None,
    read: tuple[Arrays, ...] = (),
) -> list[Arrays]:
    """The new contents of `lists`: parameters, gradients, then states. Empty lists are skipped.

    The rule is an inner function, so it is traced and lowered once for all parameters of a shape.
    """
    lists = tuple(items for items in lists if items)

    @jax.jit
    def step(*values: Array) -> list[Array]:
        old, given = values[: len(lists)], values[len(lists) :]
        param, grad, *states = widen(*old)
        if grad_scale is not None:
            grad = grad / cast(grad_scale, grad.dtype)
        param, *states = rule(param, -grad if maximize else grad, *states, *given)
        new = [n.astype(o.dtype) for n, o in zip((param, grad, *states), old, strict=True)]
        if found_inf is not None:
            skip = cast(found_inf, jnp.float32) != 0
            new = [jnp.where(skip, o, n) for n, o in zip(new, old, strict=True)]
        return new

    columns = [step(*values) for values in zip(*lists, *read, strict=True)]
    return [list(items) for items in zip(*columns, strict=True)]


def _adam(decoupled: bool) -> Callable[..., list[Arrays]]:
    def adam(
        self: Arrays,
        grads: Arrays,
        exp_avgs: Arrays,
        exp_avg_sqs: Arrays,
        max_exp_avg_sqs: Arrays,
        state_steps: Arrays,
        lr: Operand,
        beta1: Scalar,
        beta2: Scalar,
        weight_decay: Scalar,
        eps: Scalar,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Operand | None = None,
        found_inf: Operand | None = None,
    ) -> list[Arrays]:
        def rule(
            param: Array, grad: Array, average: Array, square: Array, *others: Array
        ) -> tuple[Array, ...]:
            *maxima, count = others
            dtype = param.dtype
            rate = cast(lr, dtype)
            if decoupled:
                param = param * (1 - rate * cast(weight_decay, dtype))
            else:
                grad = _decayed(grad, weight_decay, param)
            average = average + (1 - cast(beta1, dtype)) * (grad - average)
            decay_of_square = cast(beta2, dtype)
            square = decay_of_square * square + (1 - decay_of_square) * grad * grad
            maxima = [jnp.maximum(m, square) for m in maxima]
            size = rate / _correction(beta1, count, dtype)
            scale = jnp.sqrt(_correction(beta2, count, dtype))
            deviation = jnp.sqrt(maxima[0] if amsgrad else square) / scale
            param = param - size * average / (deviation + cast(eps, dtype))
            return param, average, square, *maxima

        _check_dtypes(self, exp_avgs)
        lists = (self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
        return _step(rule, lists, maximize, grad_scale, found_inf, (state_steps,))

    return adam


def _check_dtypes(params: Arrays, states: Arrays) -> None:
    """Refuse averages of another dtype than their parameters', as all of torch's kernels for Adam do."""
    for param, state in zip(params, states, strict=True):
        expected, found = row_of(param.dtype), row_of(state.dtype)
        if expected is not found and expected is not None and found is not None:
            raise RuntimeError(f"expected scalar type {expected.name} but found {found.name}")


def _decayed(grad: Array, weight_decay: Scalar, param: Array) -> Array:
    """The gradient with decay; without it, the same to the last bit: 0 * inf is nan, and -0 + 0 is 0."""
    decay = cast(weight_decay, grad.dtype)
    return jnp.where(decay != 0, grad + decay * param, grad)


def _correction(beta: Scalar, count: Array, dtype: np.dtype) -> Array:
    """`1 - beta**count`, correct to the last digits: in float32, `1 - 0.999**1` has only three.

    torch computes it in float64. So does an eager program, where `beta` is an operand. In captured code `beta` is
    known, and nothing needs 64 bits, which TPUs do not have.
    """
    value = beta.value if isinstance(beta, Number) else beta
    if isinstance(value, jax.core.Tracer):
        return (1 - cast(beta, jnp.float64) ** count.astype(jnp.float64)).astype(dtype)
    with np.errstate(divide="ignore"):  # of 0 it is -inf
        logarithm = np.log(np.asarray(value, np.float64))
    return -jnp.expm1(count.astype(dtype) * logarithm.astype(dtype))


lower("_fused_adam", "_fused_adam.tensor_lr", meta=False, by_position=True)(_adam(decoupled=False))
lower("_fused_adamw", "_fused_adamw.tensor_lr", meta=False, by_position=True)(_adam(decoupled=True))


# The first step has no separate program, which would be compiled for that step only.
@lower("_fused_sgd", "_fused_sgd.tensor_lr", flags=["is_first_step"], meta=False, by_position=True)
def sgd(
    self: Arrays,
    grads: Arrays,
    momentum_buffer_list: Arrays,
    weight_decay: Scalar,
    momentum: Scalar,
    lr: Operand,
    dampening: Scalar,
    nesterov: bool,
    maximize: bool,
    is_first_step: Scalar,
    grad_scale: Operand | None = None,
    found_inf: Operand | None = None,
) -> list[Arrays]:
    def rule(param: Array, grad: Array, *buffer: Array) -> tuple[Array, ...]:
        dtype = param.dtype
        grad = _decayed(grad, weight_decay, param)
        if buffer:
            factor = cast(momentum, dtype)
            updated = factor * buffer[0] + (1 - cast(dampening, dtype)) * grad
            buffer = (jnp.where(cast(is_first_step, jnp.int32) != 0, grad, updated),)
            grad = grad + factor * buffer[0] if nesterov else buffer[0]
        return param - cast(lr, dtype) * grad, *buffer

    return _step(rule, (self, grads, momentum_buffer_list), maximize, grad_scale, found_inf)


@lower("_fused_adagrad.tensor_lr", meta=False, by_position=True)
def adagrad(
    self: Arrays,
    grads: Arrays,
    state_sums: Arrays,
    state_steps: Arrays,
    lr: Operand,
    lr_decay: Scalar,
    weight_decay: Scalar,
    eps: Scalar,
    maximize: bool,
    grad_scale: Operand | None = None,
    found_inf: Operand | None = None,
) -> list[Arrays]:
    def rule(param: Array, grad: Array, total: Array, count: Array) -> tuple[Array, Array]:
        dtype = param.dtype
        grad = _decayed(grad, weight_decay, param)
        total = total + grad * grad
        rate = cast(lr, dtype) / (1 + (count - 1) * cast(lr_decay, dtype))
        return param - rate.astype(dtype) * grad / (jnp.sqrt(total) + cast(eps, dtype)), total

    lists = (self, grads, state_sums)
    return _step(rule, lists, maximize, grad_scale, found_inf, (state_steps,))


@lower("_fused_adagrad", meta=False, by_position=True)
def adagrad_with_steps(
    self: Arrays, grads: Arrays, state_sums: Arrays, state_steps: Arrays, *options: Any
) -> list[Arrays]:
    # The schema of this overload marks the steps as written, although no kernel of torch changes them.
    return [*adagrad(self, grads, state_sums, state_steps, *options), state_steps]


# -- gradient scaling ------------------------------------------------------------------------------


@lower("_amp_foreach_non_finite_check_and_unscale", meta=False)
def unscale(self: Arrays, found_inf: Array, inv_scale: Array) -> tuple[Arrays, Array]:
    finite = [jnp.all(jnp.isfinite(g)) for g in self]
    unscaled = [(widen(g)[0] * inv_scale).astype(g.dtype) for g in self]
    return unscaled, jnp.where(jnp.all(jnp.stack(finite)), found_inf, 1)


@lower("_amp_update_scale", meta=False)
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Scalar,
    scale_backoff_factor: Scalar,
    growth_interval: int,
) -> tuple[Array, Array]:
    failed = found_inf != 0
    successes = growth_tracker + 1
    due = successes == growth_interval
    grown = self * cast(scale_growth_factor, self.dtype)
    grown = jnp.where(due & jnp.isfinite(grown), grown, self)
    scale = jnp.where(failed, self * cast(scale_backoff_factor, self.dtype), grown)
    return scale, jnp.where(failed | due, 0, successes)
