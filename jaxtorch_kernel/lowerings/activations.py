"""Activation functions and their derivatives.

JAX differentiates the differentiable ones. Piecewise functions have explicit derivatives, because torch defines the
derivative at the points where two pieces meet.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .draws import Draws
from .nondifferentiable import with_derivatives
from .promote import cast, in_opmath, promote
from .registry import lower
from .types import Array, Operand, Scalar
from .vjp import vjp

_SQRT_2_OVER_PI = 0.7978845608028654
_SQRT_HALF = 0.7071067811865476


# -- rectifiers ------------------------------------------------------------------------------------


@lower("threshold")
@in_opmath
def threshold(self: Array, threshold: Scalar, value: Scalar) -> Array:
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, self.dtype), self)


@lower("threshold_backward")
def threshold_backward(grad_output: Operand, self: Operand, threshold: Scalar) -> Array:
    grad_output, self = promote(grad_output, self)
    return jnp.where(self <= cast(threshold, self.dtype), 0, grad_output)


@lower("leaky_relu")
@in_opmath
def leaky_relu(self: Array, negative_slope: Scalar = 0.01) -> Array:
    return jnp.where(self > 0, self, self * cast(negative_slope, self.dtype))


@lower("leaky_relu_backward")
@in_opmath
def leaky_relu_backward(
    grad_output: Array, self: Array, negative_slope: Scalar, self_is_result: bool
) -> Array:
    return jnp.where(self > 0, grad_output, grad_output * cast(negative_slope, self.dtype))


@lower("_prelu_kernel")
@in_opmath
def prelu(self: Array, weight: Array) -> Array:
    return jnp.where(self > 0, self, weight * self)


@lower("_prelu_kernel_backward")
@in_opmath
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    positive = self > 0
    return (
        jnp.where(positive, grad_output, weight * grad_output),
        jnp.where(positive, 0, self * grad_output),
    )


@lower(
    "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", random=True, meta=False
)
def rrelu_with_noise(
    draws: Draws,
    self: Array,
    noise: Array,
    lower: Operand = 0.125,
    upper: Operand = 1 / 3,
    training: bool = False,
) -> tuple[Array, Array]:
    lower, upper = cast(lower, self.dtype), cast(upper, self.dtype)
    if not training:
        return jnp.where(self <= 0, self * ((lower + upper) / 2), self), noise
    drawn = draws.uniform(self.shape, self.dtype) * (upper - lower) + lower
    noise = jnp.where(self <= 0, drawn, 1)
    return self * noise, noise


@lower("elu")
@in_opmath
def elu(self: Array, alpha: Scalar = 1, scale: Scalar = 1, input_scale: Scalar = 1) -> Array:
    return _elu(self, *(cast(x, self.dtype) for x in (alpha, scale, input_scale)))


def _elu_derivative(
    tangent: Array, _: Array, x: Array, alpha: Array, scale: Array, input_scale: Array
) -> Array:
    negative = jnp.exp(jnp.minimum(x, 0) * input_scale) * (alpha * scale * input_scale)
    return tangent * jnp.where(x <= 0, negative, scale)


@with_derivatives(_elu_derivative)
def _elu(self: Array, alpha: Array, scale: Array, input_scale: Array) -> Array:
    # expm1 of a large positive number is infinite, and infinity times zero is NaN in the derivative.
    negative = jnp.expm1(jnp.where(self < 0, self, 0) * input_scale)
    return jnp.where(self < 0, negative * (alpha * scale), self * scale)


@lower("elu_backward")
@in_opmath
def elu_backward(
    grad_output: Array,
    alpha: Operand,
    scale: Operand,
    input_scale: Operand,
    is_result: bool,
    self_or_result: Array,
) -> Array:
    x = self_or_result
    alpha, scale, input_scale = (cast(c, x.dtype) for c in (alpha, scale, input_scale))
    size = alpha * scale
    negative = x + size if is_result else size * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad_output * input_scale * negative, grad_output * scale)


# -- pieces of straight lines ----------------------------------------------------------------------


@lower("hardtanh")
def hardtanh(self: Array, min_val: Scalar = -1, max_val: Scalar = 1) -> Array:
    return _hardtanh(self, cast(min_val, self.dtype), cast(max_val, self.dtype))


@with_derivatives(lambda tangent, _, *operands: _hardtanh_derivative(tangent, *operands))
def _hardtanh(self: Array, min_val: Array, max_val: Array) -> Array:
    return jnp.minimum(jnp.maximum(self, min_val), max_val)


@lower("hardtanh_backward")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Scalar, max_val: Scalar) -> Array:
    return _hardtanh_derivative(
        grad_output, self, cast(min_val, self.dtype), cast(max_val, self.dtype)
    )


def _hardtanh_derivative(tangent: Array, x: Array, min_val: Array, max_val: Array) -> Array:
    return jnp.where((x <= min_val) | (x >= max_val), 0, tangent)


@lower("hardsigmoid")
@in_opmath
@with_derivatives(lambda tangent, _, x: _hardsigmoid_derivative(tangent, x))
def hardsigmoid(self: Array) -> Array:
    return jnp.clip(self + 3, 0, 6) / 6


@lower("hardsigmoid_backward")
@in_opmath
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    return _hardsigmoid_derivative(grad_output, self)


def _hardsigmoid_derivative(tangent: Array, x: Array) -> Array:
    return jnp.where((x > -3) & (x < 3), tangent / 6, 0)


@lower("hardswish")
@in_opmath
@with_derivatives(lambda tangent, _, x: tangent * _hardswish_derivative(x))
def hardswish(self: Array) -> Array:
    return self * jnp.clip(self + 3, 0, 6) / 6


@lower("hardswish_backward")
@in_opmath
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    return grad_output * _hardswish_derivative(self)


def _hardswish_derivative(x: Array) -> Array:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, x / 3 + 0.5, 1))


@lower("hardshrink")
def hardshrink(self: Array, lambd: Scalar = 0.5) -> Array:
    return jnp.where(jnp.abs(self) <= cast(lambd, self.dtype), 0, self)


@lower("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_output: Array, self: Array, lambd: Scalar) -> Array:
    return jnp.where(jnp.abs(self) <= cast(lambd, self.dtype), 0, grad_output)


@lower("softshrink")
@in_opmath
def softshrink(self: Array, lambd: Operand = 0.5) -> Array:
    lambd = cast(lambd, self.dtype)
    # The product with zero keeps NaN.
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


# -- differentiable everywhere ---------------------------------------------------------------------


@lower("gelu")
@in_opmath
def gelu(self: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (self + 0.044715 * self**3)
        return 0.5 * self * (1 + jnp.tanh(inner))
    return 0.5 * self * (1 + jax.lax.erf(self * _SQRT_HALF))


@lower("silu")
@in_opmath
def silu(self: Array) -> Array:
    return self * jax.nn.sigmoid(self)


@lower("mish")
@in_opmath
def mish(self: Array) -> Array:
    return self * jnp.tanh(jax.nn.softplus(self))


@lower("glu")
@in_opmath
def glu(self: Array, dim: int = -1) -> Array:
    value, gate = jnp.split(self, 2, dim)
    return value * jax.nn.sigmoid(gate)


@lower("gelu_backward")
@in_opmath
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Array:
    return vjp(lambda x: gelu(x, approximate), (self,), grad_output)[0]


@lower("glu_backward")
@in_opmath
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    return vjp(lambda x: glu(x, dim), (self,), grad_output)[0]


@lower("glu_jvp")
@in_opmath
def glu_jvp(result: Array, x: Array, dx: Array, dim: int) -> Array:
    return jax.jvp(lambda a: glu(a, dim), (x,), (dx,))[1]


@lower("glu_backward_jvp")
@in_opmath
def glu_backward_jvp(
    grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int
) -> Array:
    return jax.jvp(lambda g, a: glu_backward(g, a, dim), (grad_glu, x), (dgrad_glu, dx))[1]


def _differentiated(function: Callable[..., Array]) -> Callable[..., Array]:
    def backward(grad_output: Array, self: Array) -> Array:
        return vjp(function, (self,), grad_output)[0]

    return in_opmath(backward)


for _name, _function in {"silu": silu, "mish": mish}.items():
    lower(f"{_name}_backward")(_differentiated(_function))


@lower("softplus")
@in_opmath
def softplus(self: Array, beta: Operand = 1, threshold: Scalar = 20) -> Array:
    beta = cast(beta, self.dtype)
    scaled = self * beta
    return jnp.where(scaled > cast(threshold, self.dtype), self, jax.nn.softplus(scaled) / beta)


@lower("softplus_backward")
@in_opmath
def softplus_backward(grad_output: Array, self: Array, beta: Scalar, threshold: Scalar) -> Array:
    scaled = self * cast(beta, self.dtype)
    derivative = grad_output * jax.nn.sigmoid(scaled)
    return jnp.where(scaled > cast(threshold, self.dtype), grad_output, derivative)


@lower("log_sigmoid_forward")
@in_opmath
def log_sigmoid_forward(self: Array) -> tuple[Array, Array]:
    # The CPU's backward operator uses the second result.
    return jax.nn.log_sigmoid(self), jnp.exp(-jnp.abs(self))


@lower("log_sigmoid_backward")
@in_opmath
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    return grad_output * jax.nn.sigmoid(-self)


@lower("sigmoid_backward")
@in_opmath
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * ((1 - output) * output).conj()


@lower("tanh_backward")
@in_opmath
def tanh_backward(grad_output: Array, output: Array) -> Array:
    return grad_output * (1 - output * output).conj()
