"""`linear`, `matmul`, `einsum` and `tensordot` as one operator each, forward and backward.

torch composes them of other operators, which reshape tensors of more than two dimensions to matrices. Each reshape is a
call, and to reshape a tensor that is sharded over an inner dimension, XLA gathers it.

For `linear` and `matmul` torch also has gradient formulas (`LinearBackward0`), for devices with their own kernels. This
device has them (`lowerings/matmul.py`), and the functions here, which torch calls above autograd, choose:

* no gradient is recorded: the kernel;
* torch's formula applies: autograd's node, then the kernel;
* a derivative of `torch.func` or in forward mode: autograd's node, or the tangent by the rule of products; then the
  transform around it, which calls the operator again;
* otherwise the composite's parts. `torch.vmap` and dispatch modes have to see them, and the formulas do not support
  complex numbers, or a bias that is not a vector.

The backward operators are composed of their parts for a second derivative too, and in `torch.vmap`, which would call
them once for each element of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter

import jax
import jax.numpy as jnp
import torch
from torch.autograd import forward_ad

from ..base import torch_private as private
from ..dispatch.registry import above_autograd, in_batches, kernel
from ..lowerings.matmul import contracted
from ..programs import tracing
from ..storage import placement
from ..storage.buffer import attached
from .choice import operation_of
from .composite import Composite

Tensor = torch.Tensor
aten = torch.ops.aten
_linear, _matmul = aten.linear.default, aten.matmul.default
_linear_backward = aten.linear_backward.default
_matmul_backward = aten.matmul_backward.default


@above_autograd("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input @ weight.T + bias`."""
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if not _is_layer(input, weight, bias):
        return _linear.decompose(input, weight, bias)
    if private.interposed(tensors):
        if not private.differentiating(tensors):
            return _linear.decompose(input, weight, bias)
        return _differentiated(_linear, linear, *tensors)
    if merged := _merged(input):
        return linear(input.unflatten(0, merged), weight, bias).flatten(0, -2)
    if not _recorded(tensors):
        return operation_of(_linear).kernel(input, weight, bias)
    return private.with_gradient_formula(_linear, input, weight, bias)


def _is_layer(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether a kernel and torch's formula apply; the composite's parts raise torch's errors."""
    dtype = input.dtype
    if weight.dim() != 2 or not input.dim() or weight.dtype != dtype or not dtype.is_floating_point:
        return False
    return bias is None or (bias.dtype == dtype and bias.shape == weight.shape[:1])


@above_autograd("matmul")
def matmul(self: Tensor, other: Tensor) -> Tensor:
    """`self @ other`."""
    tensors = (self, other)
    if self.dtype != other.dtype:
        return _matmul.decompose(self, other)
    if private.interposed(tensors):
        if not (private.differentiating(tensors) and self.dtype.is_floating_point):
            return _matmul.decompose(self, other)
        return _differentiated(_matmul, matmul, self, other)
    if other.dim() == 2 and (merged := _merged(self)):
        return matmul(self.unflatten(0, merged), other).flatten(0, -2)
    if not _recorded(tensors):
        return operation_of(_matmul).kernel(self, other)
    if not self.dtype.is_floating_point:
        return _matmul.decompose(self, other)
    return private.with_gradient_formula(_matmul, self, other)


@in_batches("linear_backward")
@above_autograd("linear_backward")
def linear_backward(
    self: Tensor, grad_output: Tensor | None, weight: Tensor, output_mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of `linear`'s input, weight and bias that are wanted."""
    if grad_output is None:  # an undefined gradient means zeros
        return None, None, None
    tensors = (self, grad_output, weight)
    if not (private.interposed(tensors) or _recorded(tensors)):
        operation = operation_of(_linear_backward)
        return operation.kernel(*tensors, tuple(output_mask))
    if private.interposed(tensors):
        if not _has_formula(tensors):
            return _of_rows(self, grad_output, weight, output_mask)
        results: tuple[Tensor | None, ...] = private.with_gradient_formula(
            _linear_backward, *tensors, list(output_mask)
        )
        return results
    first, second = _of_factors(grad_output, self, weight.mT, output_mask)
    bias = grad_output.sum_to_size(weight.shape[:1]) if output_mask[2] else None
    return first, None if second is None else second.mT, bias


@in_batches("matmul_backward")
@above_autograd("matmul_backward")
def matmul_backward(
    grad: Tensor | None, self: Tensor, other: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of the factors that are wanted."""
    if grad is None:
        return None, None
    tensors = (grad, self, other)
    if private.interposed(tensors):
        if other.dim() == 2 <= self.dim():  # `linear_backward` sums over the batch in the product
            first, second, _ = linear_backward(self, grad, other.mT, (*mask, False))
            return first, None if second is None else second.mT
        if self.dim() == 2 < other.dim():
            second, first, _ = linear_backward(other.mT, grad.mT, self, (mask[1], mask[0], False))
            return first, None if second is None else second.mT
        return _of_factors(grad, self, other, mask)
    if _recorded(tensors):
        return _of_factors(grad, self, other, mask)
    return operation_of(_matmul_backward).kernel(*tensors, tuple(mask))


def _merged(rows: Tensor) -> tuple[int, ...]:
    """The dimensions of its buffer that a matrix merges to its rows, if a program of several devices may read it.

    `nn.MultiheadAttention` gives `linear` a matrix of sequence x batch. XLA can divide its rows over devices by the
    sequence only, and would gather a batch that is divided. An empty tuple stands for a matrix as its buffer has it.
    """
    if not (
        tracing.depth or placement.any_mesh
    ):  # the usual case: looking at the buffer takes 0.5 µs
        return ()
    if rows.dim() != 2 or not rows.is_contiguous():
        return ()
    buffer = attached(rows.untyped_storage())
    if buffer is None:  # the operator raises torch's error for a tensor on the CPU
        return ()
    spec = buffer.spec
    if not spec.shape or spec.shape[0] == rows.shape[0] or spec.numel != rows.numel():
        return ()
    if not (tracing.active() or placement.on_mesh(spec.placement)):
        return ()
    sizes, left = [], rows.shape[0]
    for size in spec.shape:
        if size == left or not size or left % size:
            break
        sizes.append(size)
        left //= size
    return (*sizes, left) if sizes and left > 1 else ()


_needs_gradient = attrgetter("requires_grad")


def _recorded(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(map(_needs_gradient, tensors))


def _has_formula(tensors: Sequence[Tensor]) -> bool:
    """Whether torch's formula is all that the innermost transform needs: it has none for forward mode."""
    return private.differentiating(tensors) and all(
        private.dual_parts(t)[1] is None for t in tensors
    )


def _differentiated(
    op: private.OpOverload, product: Callable[..., Tensor], *tensors: Tensor
) -> Tensor:
    """A product in a derivative of `torch.func` or in forward mode."""
    pushed = _pushed(product, *tensors)
    if pushed is not None:
        return pushed
    result: Tensor = private.with_gradient_formula(op, *tensors)
    return result


def _pushed(
    product: Callable[..., Tensor], first: Tensor, second: Tensor, *bias: Tensor
) -> Tensor | None:
    """A product in forward mode, with its tangent; None if no tensor has one. torch has no formula for it."""
    primals, tangents = zip(*map(private.dual_parts, (first, second, *bias)), strict=True)
    if all(t is None for t in tangents):
        return None
    result = product(*primals)
    parts = []
    if tangents[0] is not None:
        parts.append(product(tangents[0], primals[1]))
    if tangents[1] is not None:
        parts.append(product(primals[0], tangents[1]))
    parts += [t.expand_as(result) for t in tangents[2:] if t is not None]
    return forward_ad.make_dual(result, functools.reduce(torch.add, parts), level=0)


def _of_rows(
    self: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of `linear`, composed of operators, with all rows in one matrix: a transform sees the parts."""
    rows, of_rows = (t.flatten(0, -2) if t.dim() > 1 else t.unsqueeze(0) for t in (self, grad))
    return (
        grad @ weight if mask[0] else None,
        of_rows.mT @ rows if mask[1] else None,
        of_rows.sum(0) if mask[2] else None,
    )


def _of_factors(
    grad: Tensor, self: Tensor, other: Tensor, mask: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of `self @ other`, composed of operators."""
    rows, columns = self.dim() > 1, other.dim() > 1
    left, right = self if rows else self.unsqueeze(0), other if columns else other.unsqueeze(1)
    if not columns:
        grad = grad.unsqueeze(-1)
    if not rows:
        grad = grad.unsqueeze(-2)
    first = (grad @ right.mT).sum_to_size(left.shape).reshape(self.shape) if mask[0] else None
    second = (left.mT @ grad).sum_to_size(right.shape).reshape(other.shape) if mask[1] else None
    return first, second


# -- einsum and tensordot ------------------------------------------------------------------------------------------


def _einsum(
    equation: str, tensors: Sequence[jax.Array], path: Sequence[int] | None = None
) -> jax.Array:
    return contracted(partial(jnp.einsum, equation), *tensors)


def _tensordot(
    self: jax.Array, other: jax.Array, dims_self: Sequence[int], dims_other: Sequence[int]
) -> jax.Array:
    return contracted(partial(jnp.tensordot, axes=(dims_self, dims_other)), self, other)


_contraction = Composite(_einsum, aten.einsum.default)
_dot = Composite(_tensordot, aten.tensordot.default)


@kernel("einsum")
def einsum(
    equation: str, tensors: Sequence[Tensor], *, path: Sequence[int] | None = None
) -> Tensor:
    """The sum of products, as one contraction for each pair of operands; `path` is left to XLA."""
    if len(tensors) < 2 or not _are_factors(tensors):  # of one operand, it may be a view
        return aten.einsum.default.decompose(equation, tensors, path=path)
    return _contraction(equation, list(tensors))


@kernel("tensordot")
def tensordot(
    self: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Tensor:
    """The sum of products over pairs of dimensions, as one contraction."""
    sizes = [
        [t.shape[d] for d in dims if -t.dim() <= d < t.dim()]
        for t, dims in ((self, dims_self), (other, dims_other))
    ]
    if sizes[0] != sizes[1] or not _are_factors((self, other)):
        return aten.tensordot.default.decompose(self, other, dims_self, dims_other)
    return _dot(self, other, list(dims_self), list(dims_other))


def _are_factors(tensors: Sequence[Tensor]) -> bool:
    """Whether their products are defined; the composite's parts raise torch's errors."""
    dtype = tensors[0].dtype
    return (dtype.is_floating_point or dtype.is_complex) and all(t.dtype == dtype for t in tensors)
