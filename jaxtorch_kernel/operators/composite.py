"""Composites that are not decomposed: one JAX function instead of the dozens of operators that torch would run.

torch defines a composite (`lstm`, `layer_norm`, `einsum`) by other operators, and autograd sees only those. A
`Composite` replaces it above autograd:

    @kernel("layer_norm")              a composite's kernel is registered for autograd too (`registration.py`)
    Composite(function, torch.ops.aten.layer_norm.default)

* **Forward** is one program. torch's Meta kernel, here the composite itself on meta tensors, is called once per
  program for sizes, strides, dtypes and errors.
* **Backward** is one program, `jax.vjp` of the same function, which recomputes as much of the forward as the gradient
  needs. That program is itself a Composite, so gradients of any order work.
* **The decomposition** runs instead when something has to see its operators: `torch.func` transforms, batched
  gradients, forward mode, dispatch modes and tensor subclasses. The gradient is then torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import jax
import torch

from ..base import torch_private as private
from ..base.torch_private import OpOverload
from ..dispatch.call import exact
from ..dispatch.operation import Operation
from ..lowerings.registry import Lowering
from ..lowerings.vjp import vjp
from ..programs import tracing
from .node import Context, Node, apply_unwrapped

Tensor = torch.Tensor

# A call is split into operands (tensors, and floats that may change between calls) and a template: the other arguments,
# with marks for the operands.
_OPERAND = object()


class _OperandList(int):
    """In a template: a list of this many operands."""


Template = tuple[object, ...]
Operand = Tensor | float
Function = Callable[..., Any]  # of the arguments of a composite


class _Context(Context, Protocol):
    """The node of a call: its template, and which operands are numbers (None for tensors, which torch saves)."""

    template: Template
    numbers: list[float | None]


class Composite:
    """A JAX function over tensors with its gradients.

    Args:
        function: takes the composite's arguments in schema order as a lowering does; returns one or more arrays.
        op: the composite, or None for a function that torch does not have (then `name` and `decomposition` are needed).
        static: names of float arguments that shape the program.
        decomposition: a torch function of the same arguments and results, made of other operators.

    Example:
        >>> shares = Composite(
        ...     lambda x: x / abs(x).sum(), name="shares", decomposition=lambda x: x / x.abs().sum()
        ... )
        >>> x = torch.tensor([1.0, 3.0], device="jax", requires_grad=True)
        >>> y = shares(x)
        >>> y.tolist()
        [0.25, 0.75]
        >>> torch.autograd.grad(y[0], x)[0].tolist()
        [0.1875, -0.0625]
    """

    def __init__(
        self,
        function: Function,
        op: OpOverload | None = None,
        *,
        name: str = "",
        static: Iterable[str] = (),
        decomposition: Function | None = None,
    ):
        self.function = function
        self.operation = Operation(op, Lowering(function, frozenset(static)), name=name)
        self.signature = self.operation.signature
        self.static = {i for i, n in enumerate(self.signature.names) if n in static}
        self.decomposition = decomposition or self._decompose
        self._gradients: dict[tuple[object, ...], Composite] = {}

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self.signature.op is not None:
            args = self.signature.complete(args, kwargs)
        template, operands = self._split(args)
        tensors = [a for a in operands if isinstance(a, Tensor)]
        if private.interposed(tensors):
            return self.decomposition(*args)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            # Inside a trace `apply` is that of user-defined gradients (`capture/custom.py`). JAX must see the function.
            apply = apply_unwrapped if tracing.depth and tracing.active() else Node.apply
            return apply(self, template, *operands)
        return self.operation(*args)

    def _decompose(self, *args: object) -> Any:
        assert self.signature.op is not None
        return self.signature.call(self.signature.op.decompose, args)

    def _split(self, args: Sequence[object]) -> tuple[Template, list[Operand]]:
        template: list[object] = []
        operands: list[Operand] = []
        for i, a in enumerate(args):
            if isinstance(a, Tensor) or (type(a) is float and i not in self.static):
                template.append(_OPERAND)
                operands.append(a)
            elif isinstance(a, list | tuple):
                if any(isinstance(item, Tensor) for item in a):
                    template.append(_OperandList(len(a)))
                    operands += a
                else:
                    template.append(tuple(a))
            else:
                template.append(a)
        return tuple(template), operands

    # -- as a node of torch's graph --------------------------------------------------------------------------------

    def forward(self, ctx: _Context, template: Template, operands: tuple[Operand, ...]) -> object:
        """As `Differentiable.forward`."""
        results = self.operation(*_filled(template, operands))
        ctx.template = template
        ctx.numbers = [None if isinstance(a, Tensor) else a for a in operands]
        ctx.save_for_backward(*[a if isinstance(a, Tensor) else None for a in operands])
        ctx.mark_non_differentiable(
            *[r for r in _tuple(results) if not (r.is_floating_point() or r.is_complex())]
        )
        return results

    def gradients(
        self, ctx: _Context, cotangents: Sequence[Tensor | None], needed: Sequence[bool]
    ) -> list[Tensor | None]:
        """As `Differentiable.gradients`."""
        operands = [
            n if t is None else t for t, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)
        ]
        wanted = tuple(i for i, need in enumerate(needed) if need)
        gradients: list[Tensor | None] = [None] * len(operands)
        if wanted:
            missing = tuple(c is None for c in cotangents)
            gradient = self._gradient(ctx.template, len(operands), wanted, missing)
            for i, g in zip(wanted, _tuple(gradient(*operands, *cotangents)), strict=True):
                gradients[i] = g
        return gradients

    def _gradient(
        self, template: Template, count: int, wanted: tuple[int, ...], missing: tuple[bool, ...]
    ) -> Composite:
        """The gradients of the operands at `wanted`: a function of `count` operands and then a cotangent per result.

        Args:
            missing: for each cotangent, whether it is None.
        """
        key = (exact(template), count, wanted, missing)
        gradient = self._gradients.get(key)
        if gradient is None:
            gradient = self._gradients[key] = Composite(
                _pullback(self.function, template, count, wanted),
                name=f"{self.operation.name}_backward",
                decomposition=_decomposed_pullback(self.decomposition, template, count, wanted),
            )
        return gradient


def _pullback(
    function: Function, template: Template, count: int, wanted: tuple[int, ...]
) -> Callable[..., tuple[jax.Array, ...]]:
    """The gradient as a JAX function. Results without a cotangent are left out."""

    def pullback(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        operands, cotangents = arguments[:count], arguments[count:]

        def forward(*primals: jax.Array) -> tuple[jax.Array, ...]:
            replaced = list(operands)
            for i, x in zip(wanted, primals, strict=True):
                replaced[i] = x
            results = _tuple(function(*_filled(template, replaced)))
            return tuple(r for r, c in zip(results, cotangents, strict=True) if c is not None)

        given = tuple(c for c in cotangents if c is not None)
        return vjp(forward, tuple(operands[i] for i in wanted), given)

    return pullback


def _decomposed_pullback(
    decomposition: Function, template: Template, count: int, wanted: tuple[int, ...]
) -> Callable[..., Sequence[Tensor]]:
    """The gradient as a torch function."""

    def pullback(*arguments: Any) -> Sequence[Tensor]:
        operands, cotangents = list(arguments[:count]), arguments[count:]
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Use aliases: if one operand was computed from another, that path is not part of this gradient.
            for i in wanted:
                operands[i] = operands[i].view_as(operands[i])
            results = _tuple(decomposition(*_filled(template, operands)))
            pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if c is not None]
            return torch.autograd.grad(
                [r for r, _ in pairs],
                [operands[i] for i in wanted],
                [c for _, c in pairs],
                create_graph=create_graph,
                allow_unused=True,
                materialize_grads=True,
            )

    return pullback


def _filled(template: Template, operands: Iterable[object]) -> list[object]:
    """The arguments of a call, from its template and its operands."""
    rest = iter(operands)

    def argument(entry: object) -> object:
        if entry is _OPERAND:
            return next(rest)
        return [next(rest) for _ in range(entry)] if isinstance(entry, _OperandList) else entry

    return [argument(entry) for entry in template]


def _tuple(results: object) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, list | tuple) else (results,)
