"""Operators on the bits of integers and bools."""

from __future__ import annotations

import jax.numpy as jnp

from .elementwise import lower_arithmetic
from .promote import cast, promote
from .registry import lower
from .types import Array, Operand
from .unary import exp2


def _forms(name: str) -> str:
    return f"{name}.Tensor {name}.Scalar {name}.Scalar_Tensor"


def _shifts(name: str) -> str:
    return f"{name}.Tensor {name}.Tensor_Scalar {name}.Scalar_Tensor"


# A shift by the width or more, or by a negative count (read as unsigned), leaves only the sign, in XLA as in torch.
lower_arithmetic(
    {
        "bitwise_not": jnp.invert,
        _forms("bitwise_and"): jnp.bitwise_and,
        _forms("bitwise_or"): jnp.bitwise_or,
        _forms("bitwise_xor"): jnp.bitwise_xor,
        _shifts("bitwise_left_shift"): jnp.left_shift,
        _shifts("bitwise_right_shift"): jnp.right_shift,
    }
)


@lower("__lshift__.Tensor", "__lshift__.Scalar")
def lshift(self: Array, other: Operand) -> Array:
    self, other = promote(self, cast(other, self.dtype))
    return self * exp2(other) if _is_float(self) else jnp.left_shift(self, other)


@lower("__rshift__.Tensor", "__rshift__.Scalar")
def rshift(self: Array, other: Operand) -> Array:
    self, other = promote(self, cast(other, self.dtype))
    return self / exp2(other) if _is_float(self) else jnp.right_shift(self, other)


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
