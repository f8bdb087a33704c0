"""Connectionist temporal classification: the likelihood of a labelling, summed over all alignments.

One scan over time computes the forward variables: the log probability of having emitted the first s symbols of the
labels, with blanks in between. Lengths are arrays, so that batches with different lengths share one program; the list
overloads copy their lengths to the device.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .promote import in_opmath
from .types import Array, Pair
from .vjp import vjp

# log 0 inside the scan, where -inf would make the derivative of logaddexp NaN.
_LOG_ZERO = -1e30
_IMPOSSIBLE = -1e29


def _padded(targets: Array, lengths: Array, longest: int) -> Array:
    """One row of targets for each input, from rows or from one concatenation."""
    positions = jnp.arange(longest, dtype=jnp.int32)
    if targets.ndim == 2:
        starts = jnp.zeros_like(lengths)
        rows = targets
    else:
        starts = jnp.cumsum(lengths) - lengths
        rows = jnp.broadcast_to(targets, (lengths.size, targets.size))
    index = jnp.minimum(starts[:, None] + positions, max(rows.shape[1] - 1, 0))
    return jnp.take_along_axis(rows, index, 1) if rows.shape[1] else rows


def _forward_variables(log_probs: Array, labels: Array, input_lengths: Array, blank: int) -> Array:
    """alpha[t, b, s], constant in time after the end of an input."""
    batch, symbols = labels.shape
    extended = jnp.full((batch, 2 * symbols + 1), blank, labels.dtype).at[:, 1::2].set(labels)
    emitted = jnp.take_along_axis(log_probs, extended[None], 2)
    # A symbol may follow the one two positions before it, without the blank in between, if the two differ.
    two_before = jnp.pad(extended, ((0, 0), (2, 0)))[:, :-2]
    position = jnp.arange(2 * symbols + 1, dtype=jnp.int32)
    skips = (extended != blank) & (extended != two_before) & (position >= 2)

    def delayed(alpha: Array, by: int) -> Array:
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=_LOG_ZERO)[:, : alpha.shape[1]]

    def advance(alpha: Array, step: Pair) -> Pair:
        emission, time = step
        reached = jnp.logaddexp(alpha, delayed(alpha, 1))
        reached = jnp.logaddexp(reached, jnp.where(skips, delayed(alpha, 2), _LOG_ZERO))
        new = jnp.maximum(reached + emission, _LOG_ZERO)
        new = jnp.where((time < input_lengths)[:, None], new, alpha)
        return new, new

    times = jnp.arange(log_probs.shape[0], dtype=jnp.int32)
    # An alignment starts at the first symbol (a blank) or the second.
    first = jnp.maximum(jnp.where(position < 2, emitted[0], _LOG_ZERO), _LOG_ZERO)
    first = jnp.where((input_lengths > 0)[:, None], first, jnp.where(position == 0, 0, _LOG_ZERO))
    _, later = jax.lax.scan(advance, first, (emitted[1:], times[1:]))
    return jnp.concatenate([first[None], later])


def _negative_likelihood(alpha: Array, target_lengths: Array) -> Array:
    last = alpha[-1]
    ends = 2 * target_lengths[:, None]
    on_blank = jnp.take_along_axis(last, ends, 1)[:, 0]
    on_label = jnp.take_along_axis(last, jnp.maximum(ends - 1, 0), 1)[:, 0]
    on_label = jnp.where(target_lengths > 0, on_label, _LOG_ZERO)
    return -jnp.logaddexp(on_blank, on_label)


def _prepared(log_probs: Array, *lengths: Array) -> tuple[Array, ...]:
    """Finite log probabilities with a batch dimension, and the lengths as vectors."""
    batched = log_probs if log_probs.ndim == 3 else log_probs[:, None]
    return jnp.maximum(batched, _LOG_ZERO), *(n.reshape(-1).astype(jnp.int32) for n in lengths)


def _rows(targets: Array, log_probs: Array) -> Array:
    return targets[None] if log_probs.ndim == 2 and targets.ndim == 1 else targets


@in_opmath
def _loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    longest: int,
    blank: int,
) -> tuple[Array, Array]:
    labels = _rows(targets, log_probs)
    x, inputs, lengths = _prepared(log_probs, input_lengths, target_lengths)
    alpha = _forward_variables(x, _padded(labels, lengths, longest), inputs, blank)
    loss = _negative_likelihood(alpha, lengths)
    loss = jnp.where(loss > -_IMPOSSIBLE, jnp.inf, loss)
    alpha = jnp.where(alpha < _IMPOSSIBLE, -jnp.inf, alpha).transpose(1, 0, 2)
    return (loss, alpha) if log_probs.ndim == 3 else (loss[0], alpha[0])


@in_opmath
def gradient(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> Array:
    labels = _rows(targets, log_probs)
    x, inputs, lengths = _prepared(log_probs, input_lengths, target_lengths)
    labels = _padded(labels, lengths, longest)

    def likelihood(x: Array) -> Array:
        return _negative_likelihood(_forward_variables(x, labels, inputs, blank), lengths)

    loss = likelihood(x)
    (derivative,) = vjp(likelihood, (x,), jnp.ones_like(loss))
    # torch assumes that the input is the result of a log_softmax, and its gradient is that of the logits.
    derivative = jnp.exp(x) + derivative
    times = jnp.arange(x.shape[0], dtype=jnp.int32)
    derivative = jnp.where(times[:, None, None] < inputs[:, None], derivative, 0)
    impossible = (loss > -_IMPOSSIBLE)[:, None]
    derivative = jnp.where(impossible, 0 if zero_infinity else jnp.nan, derivative)
    return (derivative * grad.reshape(-1, 1)).reshape(log_probs.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def whole_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> tuple[Array, Array]:
    """The loss, with torch's gradient in captured code too."""
    return _loss(log_probs, targets, input_lengths, target_lengths, longest, blank)


def _save(*arguments: Any) -> tuple[Pair, tuple[Array, ...]]:
    return whole_loss(*arguments), arguments[:4]


def _pull_back(
    longest: int, blank: int, zero_infinity: bool, saved: tuple[Array, ...], cotangents: Pair
) -> tuple[Array, None, None, None]:
    return gradient(cotangents[0], *saved, longest, blank, zero_infinity), None, None, None


whole_loss.defvjp(_save, _pull_back)
