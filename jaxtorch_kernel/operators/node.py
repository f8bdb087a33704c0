"""The node that puts a JAX function into torch's graph.

There are two kinds of functions. A `Composite` (`composite.py`) recomputes its forward pass in the backward program. A
`Bridge` (`bridge.py`) runs a function whose forward program stores residuals for the backward program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch

Tensor = torch.Tensor


class Context(Protocol):
    """torch's interface of a node. The functions add attributes."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors, so that torch notices if they are modified in place."""

    def set_materialize_grads(self, value: bool) -> None:
        """Whether missing cotangents are zeros rather than None."""

    def mark_non_differentiable(self, *results: Tensor) -> None:
        """Declare the results without a gradient."""


C = TypeVar("C", bound=Context, contravariant=True)


class Differentiable(Protocol[C]):
    """A JAX function over tensors, with its gradients."""

    def forward(self, ctx: C, call: Any, operands: tuple[Any, ...]) -> object:
        """Run the function.

        Args:
            ctx: the node, which keeps what `gradients` needs.
            call: the second argument of `Node.apply`.
            operands: the tensors that may need a gradient; there may be numbers among them.
        """

    def gradients(
        self, ctx: C, cotangents: Sequence[Tensor | None], needed: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """The gradients of the operands that need one; None for the others.

        Args:
            ctx: the node.
            cotangents: one for each result; not all of them are None.
            needed: for each operand, whether it needs a gradient.
        """


class Node(torch.autograd.Function):
    """One call of a JAX function that autograd records."""

    @staticmethod
    def forward(ctx: Any, function: Differentiable[Any], call: object, *operands: object) -> object:
        ctx.function = function
        ctx.set_materialize_grads(False)
        return function.forward(ctx, call, operands)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        if all(c is None for c in cotangents):
            return (None,) * (2 + len(needed))
        return None, None, *ctx.function.gradients(ctx, cotangents, needed)


# `Node.apply` without its search for wrappers of ended `torch.func` transforms, for tensors that are none.
apply_unwrapped: Callable[..., Any] = super(torch.autograd.Function, Node).apply


def function_of(node: object) -> Differentiable[Any] | None:
    """The JAX function of a node of torch's graph; None for nodes of other kinds."""
    return getattr(node, "function", None) if isinstance(node, Node._backward_cls) else None
