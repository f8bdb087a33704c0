"""Activation functions and their derivatives.

JAX differentiates the smooth ones. The piecewise ones have explicit derivatives, because torch defines the derivative
at the points where two pieces meet.
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

_SQRT_2_OVER_PI = 0.7978845608028654
_SQRT_HALF = 0.7071067811865476


# -- rectifiers ------------------------------------------------------------------------------------


@lower("threshold")
@in_opmath
def threshold(self: Any, threshold: Any, value: Any) -> jax.Array:
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, self.dtype), self)


@lower("threshold_backward")
def threshold_backward(grad_output: Any, self: Any, threshold: Any) -> jax.Array:
    grad_output, self = promote(grad_output, self)
    return jnp.where(self <= cast(threshold, self.dtype), 0, grad_output)


@lower("leaky_relu")
@in_opmath
def leaky_relu(self: Any, negative_slope: Any = 0.01) -> jax.Array:
    return jnp.where(self > 0, self, self * cast(negative_slope, self.dtype))


@lower("leaky_relu_backward")
@in_opmath
def leaky_relu_backward(
    grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool
) -> jax.Array:
    return jnp.where(self > 0, grad_output, grad_output * cast(negative_slope, self.dtype))


@lower("_prelu_kernel")
@in_opmath
def prelu(self: Any, weight: Any) -> jax.Array:
    return jnp.where(self > 0, self, weight * self)


@lower("_prelu_kernel_backward")
@in_opmath
def prelu_backward(grad_output: Any, self: Any, weight: Any) -> tuple[jax.Array, jax.Array]:
    positive = self > 0
    return (
        jnp.where(positive, grad_output, weight * grad_output),
        jnp.where(positive, 0, self * grad_output),
    )


@lower(
    "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", random=True, meta=False
)
def rrelu_with_noise(
    key: Any, self: Any, noise: Any, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False
) -> tuple[jax.Array, jax.Array]:
    lower, upper = cast(lower, self.dtype), cast(upper, self.dtype)
    if not training:
        return jnp.where(self <= 0, self * ((lower + upper) / 2), self), noise
    drawn = jax.random.uniform(key, self.shape, self.dtype, lower, upper)
    noise = jnp.where(self <= 0, drawn, 1)
    return self * noise, noise


@lower("elu")
@in_opmath
def elu(self: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> jax.Array:
    return _elu(self, *(cast(x, self.dtype) for x in (alpha, scale, input_scale)))


def _elu_slope(change: Any, _: Any, x: Any, alpha: Any, scale: Any, input_scale: Any) -> jax.Array:
    negative = jnp.exp(jnp.minimum(x, 0) * input_scale) * (alpha * scale * input_scale)
    return change * jnp.where(x <= 0, negative, scale)


@sloped(_elu_slope)
def _elu(self: Any, alpha: Any, scale: Any, input_scale: Any) -> jax.Array:
    # expm1 of a large positive number is infinite, and would be NaN times zero in the derivative.
    negative = jnp.expm1(jnp.where(self < 0, self, 0) * input_scale)
    return jnp.where(self < 0, negative * (alpha * scale), self * scale)


@lower("elu_backward")
@in_opmath
def elu_backward(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> jax.Array:
    x = self_or_result
    alpha, scale, input_scale = (cast(c, x.dtype) for c in (alpha, scale, input_scale))
    size = alpha * scale
    negative = x + size if is_result else size * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad_output * input_scale * negative, grad_output * scale)


# -- pieces of straight lines ----------------------------------------------------------------------


@lower("hardtanh")
def hardtanh(self: Any, min_val: Any = -1, max_val: Any = 1) -> jax.Array:
    return _hardtanh(self, cast(min_val, self.dtype), cast(max_val, self.dtype))


@sloped(lambda change, _, *given: _hardtanh_slope(change, *given))
def _hardtanh(self: Any, min_val: Any, max_val: Any) -> jax.Array:
    return jnp.minimum(jnp.maximum(self, min_val), max_val)


@lower("hardtanh_backward")
def hardtanh_backward(grad_output: Any, self: Any, min_val: Any, max_val: Any) -> jax.Array:
    outside = (self <= cast(min_val, self.dtype)) | (self >= cast(max_val, self.dtype))
    return jnp.where(outside, 0, grad_output)


@lower("hardsigmoid")
@in_opmath
@sloped(lambda change, _, x: _hardsigmoid_slope(change, x))
def hardsigmoid(self: Any) -> jax.Array:
    return jnp.clip(self + 3, 0, 6) / 6


@lower("hardsigmoid_backward")
@in_opmath
def hardsigmoid_backward(grad_output: Any, self: Any) -> jax.Array:
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lower("hardswish")
@in_opmath
@sloped(lambda change, _, x: change * _hardswish_slope(x))
def hardswish(self: Any) -> jax.Array:
    return self * jnp.clip(self + 3, 0, 6) / 6


@lower("hardswish_backward")
@in_opmath
def hardswish_backward(grad_output: Any, self: Any) -> jax.Array:
    return grad_output * _hardswish_slope(self)


def _hardswish_slope(x: jax.Array) -> jax.Array:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, x / 3 + 0.5, 1))


@lower("hardshrink")
def hardshrink(self: Any, lambd: Any = 0.5) -> jax.Array:
    return jnp.where(jnp.abs(self) <= cast(lambd, self.dtype), 0, self)


@lower("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_output: Any, self: Any, lambd: Any) -> jax.Array:
    return jnp.where(jnp.abs(self) <= cast(lambd, self.dtype), 0, grad_output)


@lower("softshrink")
@in_opmath
def softshrink(self: Any, lambd: Any = 0.5) -> jax.Array:
    lambd = cast(lambd, self.dtype)
    # Times zero, not zero: NaN stays NaN.
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


# -- smooth ones -----------------------------------------------------------------------------------


@lower("gelu")
@in_opmath
def gelu(self: Any, approximate: str = "none") -> jax.Array:
    if approximate == "tanh":
        inner = _SQRT_2_OVER_PI * (self + 0.044715 * self**3)
        return 0.5 * self * (1 + jnp.tanh(inner))
    return 0.5 * self * (1 + jax.lax.erf(self * _SQRT_HALF))


@lower("silu")
@in_opmath
def silu(self: Any) -> jax.Array:
    return self * jax.nn.sigmoid(self)


@lower("mish")
@in_opmath
def mish(self: Any) -> jax.Array:
    return self * jnp.tanh(jax.nn.softplus(self))


@lower("glu")
@in_opmath
def glu(self: Any, dim: int = -1) -> jax.Array:
    value, gate = jnp.split(self, 2, dim)
    return value * jax.nn.sigmoid(gate)


@lower("gelu_backward")
@in_opmath
def gelu_backward(grad_output: Any, self: Any, approximate: str = "none") -> jax.Array:
    return vjp(lambda x: gelu(x, approximate), (self,), grad_output)[0]


@lower("glu_backward")
@in_opmath
def glu_backward(grad_output: Any, self: Any, dim: int) -> jax.Array:
    return vjp(lambda x: glu(x, dim), (self,), grad_output)[0]


@lower("glu_jvp")
@in_opmath
def glu_jvp(result: Any, x: Any, dx: Any, dim: int) -> jax.Array:
    return jax.jvp(lambda a: glu(a, dim), (x,), (dx,))[1]


@lower("glu_backward_jvp")
@in_opmath
def glu_backward_jvp(
    grad_x: Any, grad_glu: Any, x: Any, dgrad_glu: Any, dx: Any, dim: int
) -> jax.Array:
    return jax.jvp(lambda g, a: glu_backward(g, a, dim), (grad_glu, x), (dgrad_glu, dx))[1]


def _differentiated(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    def backward(grad_output: Any, self: Any) -> jax.Array:
        return vjp(function, (self,), grad_output)[0]

    return in_opmath(backward)


for _name, _function in {"silu": silu, "mish": mish}.items():
    lower(f"{_name}_backward")(_differentiated(_function))


@lower("softplus")
@in_opmath
def softplus(self: Any, beta: Any = 1, threshold: Any = 20) -> jax.Array:
    beta = cast(beta, self.dtype)
    scaled = self * beta
    return jnp.where(scaled > cast(threshold, self.dtype), self, jax.nn.softplus(scaled) / beta)


@lower("softplus_backward")
@in_opmath
def softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any) -> jax.Array:
    scaled = self * cast(beta, self.dtype)
    slope = grad_output * jax.nn.sigmoid(scaled)
    return jnp.where(scaled > cast(threshold, self.dtype), grad_output, slope)


@lower("log_sigmoid_forward")
@in_opmath
def log_sigmoid_forward(self: Any) -> tuple[jax.Array, jax.Array]:
    # The second result is what the CPU's backward would reuse.
    return jax.nn.log_sigmoid(self), jnp.exp(-jnp.abs(self))


@lower("log_sigmoid_backward")
@in_opmath
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> jax.Array:
    return grad_output * jax.nn.sigmoid(-self)


@lower("sigmoid_backward")
@in_opmath
def sigmoid_backward(grad_output: Any, output: Any) -> jax.Array:
    return grad_output * ((1 - output) * output).conj()


@lower("tanh_backward")
@in_opmath
def tanh_backward(grad_output: Any, output: Any) -> jax.Array:
    return grad_output * (1 - output * output).conj()


_hardtanh_slope: Any = hardtanh_backward
_hardsigmoid_slope: Any = hardsigmoid_backward
