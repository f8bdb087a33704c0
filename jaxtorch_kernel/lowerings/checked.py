"""The CPU kernels' checks of index, target and probability values, as JAX functions.

`config(check="indices")` runs them before the operator (`dispatch/value_checks.py`). Checks that torch makes on every
device (`ALWAYS`) run in eager calls regardless of the option. A check takes the arguments of the operator's functional
overload and yields its conditions: an array of booleans, the checked values, and the CPU's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The overload's short name -> its check.
CHECKS: dict[str, Callable[..., Iterator[Must]]] = {}

# torch looks at these values itself, on cuda too, and waits for them.
ALWAYS = frozenset({"multinomial.default", "linalg_eig.default", "_linalg_eigvals.default"})


class Must(NamedTuple):
    """What must hold for each of some values, and the error where it does not; `text` may name the `{value}`."""

    holds: jax.Array
    values: jax.Array
    error: type[Exception]
    text: str


def _check(*names: str) -> Callable[[Any], Any]:
    def register(function: Callable[..., Iterator[Must]]) -> Callable[..., Iterator[Must]]:
        for name in names:
            CHECKS[name if "." in name else f"{name}.default"] = function
        return function

    return register


def _within(index: Any, low: int, count: int, error: type[Exception], text: str) -> Iterator[Must]:
    yield Must((index >= low) & (index < count), index, error, text)


def _extent(self: Any, dim: int) -> int:
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
def _per_element(self: Any, dim: int, index: Any, *_: Any) -> Iterator[Must]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, RuntimeError, text)


@_check("index_select")
def _selected(self: Any, dim: int, index: Any) -> Iterator[Must]:
    return _within(index, 0, _extent(self, dim), IndexError, "index out of range in self")


@_check("index_add")
def _added(self: Any, dim: int, index: Any, *_: Any) -> Iterator[Must]:
    size = _extent(self, dim)
    # The CPU's kernel for rows and the one for elements differ.
    error = RuntimeError if self.ndim > 1 else IndexError
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, error, text)


@_check("index_copy", "index_reduce")
def _copied(self: Any, dim: int, index: Any, *_: Any) -> Iterator[Must]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, 0, size, IndexError, text)


@_check("index_fill.int_Scalar", "index_fill.int_Tensor")
def _filled(self: Any, dim: int, index: Any, *_: Any) -> Iterator[Must]:
    size = _extent(self, dim)
    text = f"index {{value}} is out of bounds for dimension {dim} with size {size}"
    return _within(index, -size, size, IndexError, text)


@_check("take", "put")
def _flat(self: Any, index: Any, *_: Any) -> Iterator[Must]:
    text = f"out of range: tried to access index {{value}} on a tensor of {self.size} elements."
    return _within(index, -self.size, self.size, IndexError, text)


@_check("index.Tensor", "index_put", "_index_put_impl")
def _subscripts(self: Any, indices: Any, *_: Any) -> Iterator[Must]:
    for d, index in enumerate(indices):
        if index is not None and index.dtype != np.bool_:
            size = self.shape[d]
            text = f"index {{value}} is out of bounds for dimension {d} with size {size}"
            yield from _within(index, -size, size, IndexError, text)


@_check("embedding")
def _looked_up(weight: Any, indices: Any, *_: Any) -> Iterator[Must]:
    return _within(indices, 0, weight.shape[0], IndexError, "index out of range in self")


@_check("_embedding_bag", "_embedding_bag_forward_only")
def _bagged(weight: Any, indices: Any, *_: Any) -> Iterator[Must]:
    size = weight.shape[0]
    text = f"an index of input takes value {{value}} which is not in the valid range [0, {size})"
    return _within(indices, 0, size, RuntimeError, text)


@_check("nll_loss_forward", "nll_loss2d_forward")
def _classes(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: int
) -> Iterator[Must]:
    count = self.shape[0 if self.ndim == 1 else 1]
    kept = jnp.where(target == ignore_index, 0, target)
    return _within(kept, 0, count, IndexError, "Target {value} is out of bounds.")


@_check("multi_margin_loss")
def _margin_classes(self: Any, target: Any, *_: Any) -> Iterator[Must]:
    return _within(target, 0, self.shape[-1], RuntimeError, "target out of range")


@_check("multilabel_margin_loss_forward")
def _listed_classes(self: Any, target: Any, *_: Any) -> Iterator[Must]:
    text = "argument #2 'target' is out of range"
    return _within(target, -1, self.shape[-1], RuntimeError, text)


@_check("max_unpool2d", "max_unpool3d")
def _unpooled(self: Any, indices: Any, output_size: Any, *_: Any) -> Iterator[Must]:
    size = int(np.prod(output_size))
    text = "Found an invalid max index: {value}"
    return _within(indices, 0, size, RuntimeError, text)


@_check("bernoulli", "bernoulli.Tensor")
def _chances(self: Any, p: Any = None) -> Iterator[Must]:
    p = self if p is None else p
    text = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."
    yield Must((p >= 0) & (p <= 1), p, RuntimeError, text)


@_check("binary_cross_entropy")
def _probabilities(self: Any, *_: Any) -> Iterator[Must]:
    text = "all elements of input should be between 0 and 1"
    yield Must((self >= 0) & (self <= 1), self, RuntimeError, text)


@_check("poisson")
def _rates(self: Any, *_: Any) -> Iterator[Must]:
    text = "invalid Poisson rate, expected rate to be non-negative"
    yield Must(self >= 0, self, RuntimeError, text)


@_check("multinomial")
def _weights(self: Any, *_: Any) -> Iterator[Must]:
    text = "probability tensor contains either `inf`, `nan` or element < 0"
    yield Must((self >= 0) & jnp.isfinite(self), self, RuntimeError, text)
    total = jnp.sum(self, -1)
    text = "invalid multinomial distribution (sum of probabilities <= 0)"
    yield Must(total > 0, total, RuntimeError, text)


@_check("linalg_eig", "_linalg_eigvals")
def _finite(self: Any) -> Iterator[Must]:
    text = "torch.linalg.eig: input tensor should not contain infs or NaNs."
    yield Must(jnp.isfinite(self), jnp.real(self), RuntimeError, text)
