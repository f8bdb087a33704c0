"""JAX functions called inside `torch.vmap`, `torch.func` and forward-mode derivatives.

There the tensors are batches, or have a tangent, and have no array of their own. So the call is an `autograd.Function`,
and its rules are those of JAX: `jax.vmap`, `jax.vjp` and `jax.jvp` of the JAX function. Each rule is a JAX function of
its own and is called by `call_jax` again, because transforms nest.

Rules that are equal are one object, so that a repeated call finds its compiled program.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import torch

from ..operators.node import Context
from ..programs.trees import Tree

Tensor = torch.Tensor
Array = jax.Array
Function = Callable[..., object]
R = TypeVar("R", bound=Hashable)


@functools.lru_cache(256)
def _interned(rule: R) -> R:
    return rule


@dataclass(frozen=True)
class _OfArrays:
    """A function of its arrays alone; `key` identifies the tree in comparisons."""

    function: Function
    key: Hashable
    tree: Tree = field(compare=False)

    def __call__(self, *arrays: Array) -> object:
        args, kwargs = self.tree.filled(arrays)
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class _Batched:
    """`jax.vmap` of a function."""

    function: Function
    axes: tuple[int | None, ...]
    size: int

    def __call__(self, *arrays: Array) -> object:
        return jax.vmap(self.function, self.axes, axis_size=self.size)(*arrays)


@dataclass(frozen=True)
class _Derivative:
    """A function of some of its arrays, to its results that are differentiable."""

    function: Function
    count: int
    inputs: tuple[int, ...]

    def at(self, arrays: Sequence[Array]) -> tuple[Callable[..., list[Array]], list[Array]]:
        """The function with the other arrays filled in, and the arrays that it is differentiated by."""

        def function(*changing: Array) -> list[Array]:
            filled = list(arrays)
            for i, array in zip(self.inputs, changing, strict=True):
                filled[i] = array
            results = map(jnp.asarray, jax.tree.leaves(self.function(*filled)))
            return [r for r in results if jnp.issubdtype(r.dtype, jnp.inexact)]

        return function, [arrays[i] for i in self.inputs]


class _Pullback(_Derivative):
    """(arrays, cotangents) -> gradients. torch's cotangents are the conjugates of JAX's."""

    def __call__(self, *operands: Array) -> list[Array]:
        function, inputs = self.at(operands[: self.count])
        _, pull = jax.vjp(function, *inputs)
        return [g.conj() for g in pull([c.conj() for c in operands[self.count :]])]


class _Pushforward(_Derivative):
    """(arrays, tangents) -> tangents of the results."""

    def __call__(self, *operands: Array) -> list[Array]:
        function, inputs = self.at(operands[: self.count])
        tangents: list[Array] = jax.jvp(function, inputs, list(operands[self.count :]))[1]
        return tangents


@dataclass
class _Call:
    """One call: how to call a JAX function, the function, and the structure of its result once it has run."""

    call_jax: Callable[..., Any]
    function: Function
    structure: jax.tree_util.PyTreeDef | None = None


class _Context(Context, Protocol):
    """The node of a call; `differentiable` says for each result whether it has a gradient."""

    call: _Call
    differentiable: Sequence[bool]

    def save_for_forward(self, *tensors: Tensor) -> None:
        """Save tensors for `jvp`."""


class _BatchInfo(Protocol):
    """torch's description of a batch."""

    batch_size: int


class _InTransform(torch.autograd.Function):
    """One call of a JAX function that transforms of torch see."""

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves, call.structure = jax.tree.flatten(call.call_jax(call.function, *tensors))
        return tuple(leaves)

    @staticmethod
    def setup_context(
        ctx: _Context, inputs: tuple[_Call, *tuple[Tensor, ...]], output: tuple[Tensor, ...]
    ) -> None:
        call, *tensors = inputs
        assert isinstance(call, _Call)
        ctx.call = call
        ctx.differentiable = list(map(_is_inexact, output))
        ctx.mark_non_differentiable(*(t for t in output if not _is_inexact(t)))
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: _Context, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        inputs = tuple(i for i, needs in enumerate(ctx.needs_input_grad[1:]) if needs)
        pullback = _interned(_Pullback(ctx.call.function, len(tensors), inputs))
        given = [c for c, d in zip(cotangents, ctx.differentiable, strict=True) if d]
        gradients = ctx.call.call_jax(pullback, *tensors, *given)
        by_input = dict(zip(inputs, gradients, strict=True))
        return None, *(by_input.get(i) for i in range(len(tensors)))

    @staticmethod
    def jvp(ctx: _Context, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors: tuple[Tensor, ...] = ctx.saved_tensors
        inputs = tuple(i for i, t in enumerate(tangents) if t is not None and _is_inexact(t))
        pushforward = _interned(_Pushforward(ctx.call.function, len(tensors), inputs))
        results = iter(ctx.call.call_jax(pushforward, *tensors, *(tangents[i] for i in inputs)))
        return tuple(next(results) if d else None for d in ctx.differentiable)

    @staticmethod
    def vmap(
        info: _BatchInfo, in_dims: tuple[int | None, ...], call: _Call, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        batched = _Call(
            call.call_jax, _interned(_Batched(call.function, in_dims[1:], info.batch_size))
        )
        results: tuple[Tensor, ...] = _InTransform.apply(batched, *tensors)
        call.structure = batched.structure
        return results, (0,) * len(results)


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def call(
    call_jax: Function, function: Function, key: Hashable, tree: Tree, tensors: Sequence[Tensor]
) -> object:
    """The result of a JAX function on tensors of a transform, with tensors for its arrays.

    Args:
        call_jax: calls a JAX function with tensors.
        function: of the tensors and the values of the tree.
        key: equal for equal trees.
        tree: the arguments without the tensors.
        tensors: some of them are in a transform.
    """
    this = _Call(call_jax, _interned(_OfArrays(function, key, tree)))
    results = _InTransform.apply(this, *tensors)
    assert this.structure is not None
    return jax.tree.unflatten(this.structure, results)
