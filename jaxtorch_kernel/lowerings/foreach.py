"""`torch._foreach_*`: one program for a whole list of tensors, built from the lowering for a single tensor.

Every overload applies the single-tensor operator at each position of the lists; other arguments are the same at all
positions. So each overload is built here from the lowering that `_ONE` names. In-place overloads are derived from the
schema, as usual; their one program writes all tensors, each into its donated buffer.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import torch

from ..storage.dtypes import to_numpy
from .norms import linalg_vector_norm
from .promote import in_opmath
from .registry import LOWERINGS, lower
from .types import Array, Arrays, Function

_UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 "
    "max mm neg reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
)
_NUMBERS = ("Scalar", "ScalarList")

# overload, without "_foreach_" -> the lowering of one tensor
_ONE = {
    **{f"{name}.default": f"{name}.default" for name in _UNARY.split()},
    **{
        f"{name}.{overload}": f"{name}.Tensor"
        for name in ("add", "sub", "mul", "div")
        for overload in ("List", *_NUMBERS)
    },
    **{f"{name}.Tensor": f"{name}.Tensor" for name in ("add", "mul", "div")},
    **{
        f"{name}.{overload}": one
        for name, one in {
            "maximum": "maximum.default",
            "minimum": "minimum.default",
            "clamp_min": "maximum.default",
            "clamp_max": "minimum.default",
        }.items()
        for overload in ("List", *_NUMBERS)
    },
    **{
        f"{name}.{overload}": f"{name}.default"
        for name in ("addcdiv", "addcmul")
        for overload in _NUMBERS
    },
    "copy.default": "copy_.default",
    "lerp.List": "lerp.Tensor",
    "lerp.Scalar": "lerp.Scalar",
    "lerp.ScalarList": "lerp.Scalar",
    "pow.List": "pow.Tensor_Tensor",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.ScalarList": "pow.Tensor_Scalar",
    "pow.ScalarAndTensor": "pow.Scalar",
}


def _at_each(one: Function) -> Callable[..., Arrays]:
    """A function of lists of tensors that calls `one` at each position."""

    def foreach(*args: object) -> Arrays:
        count = next(len(a) for a in args if isinstance(a, list))
        return [one(*(a[i] if isinstance(a, list) else a for a in args)) for i in range(count)]

    return foreach


def _lowering(name: str) -> Function:
    # Looked up at the first trace, because the module that registers it may be imported after this one.
    def one(*args: object) -> Array:
        result: Array = LOWERINGS[name].function(*args)
        return result

    return one


def _vector_norm(self: Array, ord: float = 2, dtype: torch.dtype | None = None) -> Array:
    return linalg_vector_norm(self, ord, None, False, dtype)


@in_opmath
def _sum_of_powers(self: Array, ord: float = 2, dtype: torch.dtype | None = None) -> Array:
    return jnp.sum(jnp.abs(self if dtype is None else self.astype(to_numpy(dtype))) ** ord)


for _overload, _name in _ONE.items():
    # The exponent is part of the program (a square is a product).
    _static = ("exponent",) if _name == "pow.Tensor_Scalar" else ()
    lower(f"_foreach_{_overload}", static=_static, by_position=True)(_at_each(_lowering(_name)))

lower("_foreach_norm.Scalar", static=("ord",), by_position=True)(_at_each(_vector_norm))
lower("_foreach_powsum.Scalar", static=("ord",), by_position=True)(_at_each(_sum_of_powers))
lower("_foreach_zero", by_position=True)(_at_each(jnp.zeros_like))
lower("_foreach_clone", by_position=True)(_at_each(lambda self, memory_format=None: jnp.copy(self)))
