"""`torch._foreach_*`: one program for a whole list of tensors, built from the lowering for a single tensor.

Every overload applies the single-tensor operator at each position: a list argument contributes its
item at that position, any other argument is shared. So each overload is built here from the lowering
that `_ONE` names. In-place overloads follow from the schema as usual, and write all their tensors
in that one program, each in its own donated buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .promote import in_opmath
from .registry import LOWERINGS, lower

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


def _at_each(one: Callable[..., Any]) -> Callable[..., list[Any]]:
    """A function of one tensor as a function of lists of them."""

    def foreach(*args: Any) -> list[Any]:
        count = next(len(a) for a in args if isinstance(a, list))
        return [one(*(a[i] if isinstance(a, list) else a for a in args)) for i in range(count)]

    return foreach


def _looked_up(name: str) -> Callable[..., Any]:
    # At the first trace: the module that registers it may be imported after this one.
    def one(*args: Any) -> Any:
        return LOWERINGS[name].function(*args)

    return one


def _vector_norm(self: Any, ord: Any = 2, dtype: Any = None) -> jax.Array:
    function = LOWERINGS["linalg_vector_norm.default"].function
    return function(self, ord, None, False, dtype)


@in_opmath
def _sum_of_powers(self: Any, ord: Any = 2, dtype: Any = None) -> jax.Array:
    return jnp.sum(jnp.abs(self if dtype is None else self.astype(dtype)) ** ord)


for _overload, _name in _ONE.items():
    # An exponent picks the program that computes the power (a square is a product).
    _static = ("exponent",) if _name == "pow.Tensor_Scalar" else ()
    lower(f"_foreach_{_overload}", static=_static)(_at_each(_looked_up(_name)))

lower("_foreach_norm.Scalar", static=("ord",))(_at_each(_vector_norm))
lower("_foreach_powsum.Scalar", static=("ord",))(_at_each(_sum_of_powers))
lower("_foreach_zero")(_at_each(jnp.zeros_like))
lower("_foreach_clone")(_at_each(lambda self, memory_format=None: jnp.copy(self)))


# -- over tensors ----------------------------------------------------------------------------------
