"""The CPU kernels' checks of index, target and probability values, as JAX functions.

`config(check="indices")` runs them before the operator (`dispatch/value_checks.py`). Checks that torch makes on every
device (`ALWAYS`) run in eager calls regardless of the option. A check takes the arguments of the operator's functional
overload and yields its conditions. Each has an array of booleans, the checked values, and the CPU's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .types import Array

Check = Callable[..., Iterator["Condition"]]
# The overload's short name -> its check.
CHECKS: dict[str, Check] = {}

# torch checks these values on every device, and waits for them on cuda too.
ALWAYS = frozenset({"multinomial.default", "linalg_eig.default", "_linalg_eigvals.default"})


class Condition(NamedTuple):
    """A condition that each value must meet, and the error otherwise; `text` may contain `{value}`."""

    holds: Array
    values: Array
    error: type[Exception]
    text: str


def _check(*names: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        for name in names:
            CHECKS[name if "." in name else f"{name}.default"] = function
        return function

    return register


def _within(
    index: Array, low: int, count: int, error: type[Exception], text: str
) -> Iterator[Condition]:
    yield Condition((index >= low) & (index < count), index, error, text)


def _extent(self: Array, dim: int) -> int:
    return int(self.shape[dim]) if self.ndim else 1


@_check(
    "gather",
    "scatter.src",
    "scatter.value",
    "scatter.reduce",
    "scatter.value_reduce",
    "scatter_add",
    "scatter_reduce.two",
)
def _per_element(self: Array, dim: int, index: Array, *_: object) -> Iterator[Condition]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, RuntimeError, text)


@_check("index_select")
def _selected(self: Array, dim: int, index: Array) -> Iterator[Condition]:
    return _within(index, 0, _extent(self, dim), IndexError, "index out of range in self")


@_check("index_add")
def _added(self: Array, dim: int, index: Array, *_: object) -> Iterator[Condition]:
    size = _extent(self, dim)
    # The CPU has separate kernels for rows and for elements, which raise different errors.
    error = RuntimeError if self.ndim > 1 else IndexError
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, error, text)


@_check("index_copy", "index_reduce")
def _copied(self: Array, dim: int, index: Array, *_: object) -> Iterator[Condition]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, IndexError, text)


@_check("index_fill.int_Scalar", "index_fill.int_Tensor")
def _filled(self: Array, dim: int, index: Array, *_: object) -> Iterator[Condition]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, -size, size, IndexError, text)


@_check("take", "put")
def _flat(self: Array, index: Array, *_: object) -> Iterator[Condition]:
    text = f"out of range: tried to access index {{value}} on a tensor of {self.size} elements."
    return _within(index, -self.size, self.size, IndexError, text)


@_check("index.Tensor", "index_put", "_index_put_impl")
def _subscripts(self: Array, indices: Sequence[Array | None], *_: object) -> Iterator[Condition]:
    for d, index in enumerate(indices):
        if index is not None and index.dtype != np.bool_:
            size = self.shape[d]
            text = f"index {{value}} is out of bounds for dimension {d} with size {size}"
            yield from _within(index, -size, size, IndexError, text)


@_check("embedding")
def _looked_up(weight: Array, indices: Array, *_: object) -> Iterator[Condition]:
    return _within(indices, 0, weight.shape[0], IndexError, "index out of range in self")


@_check("_embedding_bag", "_embedding_bag_forward_only")
def _bagged(weight: Array, indices: Array, *_: object) -> Iterator[Condition]:
    size = weight.shape[0]
    text = f"an index of input takes value {{value}} which is not in the valid range [0, {size})"
    return _within(indices, 0, size, RuntimeError, text)


@_check("nll_loss_forward", "nll_loss2d_forward")
def _classes(
    self: Array, target: Array, weight: Array, reduction: int, ignore_index: int
) -> Iterator[Condition]:
    count = self.shape[0 if self.ndim == 1 else 1]
    checked = jnp.where(target == ignore_index, 0, target)
    return _within(checked, 0, count, IndexError, "Target {value} is out of bounds.")


@_check("multi_margin_loss")
def _margin_classes(self: Array, target: Array, *_: object) -> Iterator[Condition]:
    return _within(target, 0, self.shape[-1], RuntimeError, "target out of range")


@_check("multilabel_margin_loss_forward")
def _listed_classes(self: Array, target: Array, *_: object) -> Iterator[Condition]:
    text = "argument #2 'target' is out of range"
    return _within(target, -1, self.shape[-1], RuntimeError, text)


@_check("max_unpool2d", "max_unpool3d")
def _unpooled(
    self: Array, indices: Array, output_size: Sequence[int], *_: object
) -> Iterator[Condition]:
    size = int(np.prod(output_size))
    text = "Found an invalid max index: {value}"
    return _within(indices, 0, size, RuntimeError, text)


@_check("bernoulli", "bernoulli.Tensor")
def _chances(self: Array, p: Array | None = None) -> Iterator[Condition]:
    p = self if p is None else p
    text = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    yield Condition((p >= 0) & (p <= 1), p, RuntimeError, text)


@_check("binary_cross_entropy")
def _probabilities(self: Array, *_: object) -> Iterator[Condition]:
    text = "all elements of input should be between 0 and 1"
    yield Condition((self >= 0) & (self <= 1), self, RuntimeError, text)


@_check("poisson")
def _rates(self: Array, *_: object) -> Iterator[Condition]:
    text = "invalid Poisson rate, expected rate to be non-negative"
    yield Condition(self >= 0, self, RuntimeError, text)


@_check("multinomial")
def _weights(self: Array, *_: object) -> Iterator[Condition]:
    text = "probability tensor contains either `inf`, `nan` or element < 0"
    yield Condition((self >= 0) & jnp.isfinite(self), self, RuntimeError, text)
    total = jnp.sum(self, -1)
    text = "invalid multinomial distribution (sum of probabilities <= 0)"
    yield Condition(total > 0, total, RuntimeError, text)


@_check("linalg_eig", "_linalg_eigvals")
def _finite(self: Array) -> Iterator[Condition]:
    text = "torch.linalg.eig: input tensor should not contain infs or NaNs."
    yield Condition(jnp.isfinite(self), jnp.real(self), RuntimeError, text)
