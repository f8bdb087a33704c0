"""Composites that are not decomposed: one JAX function instead of the dozens of operators that torch would run.

torch defines a composite (`lstm`, `layer_norm`, `einsum`) by other operators, and autograd sees only those. A `Whole`
replaces the composite above autograd:

    @kernel("layer_norm")              a composite's kernel is registered for autograd too (`registration.py`)
    Whole(function, torch.ops.aten.layer_norm.default)

* **Forward** is one program. torch's Meta kernel, here the composite itself on meta tensors, is called once per
  program for sizes, strides, dtypes and errors.
* **Backward** is one program, `jax.vjp` of the same function, which recomputes the forward as far as the gradient
  needs it. That program is itself a Whole, so gradients of any order work.
* **The parts** run as usual when something must see them: `torch.func` transforms, batched gradients, forward
  mode, dispatch modes and tensor subclasses. The gradient is then torch's own gradient of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..base import torch_private as private
from ..dispatch.call import exact
from ..dispatch.operation import Operation
from ..lowerings.registry import Lowering
from ..lowerings.vjp import vjp

Tensor = torch.Tensor

# A call is split into operands (tensors, and floats that may change between calls) and a template: the rest, with a
# mark where operands go.
_ONE = object()


class _Several(int):
    """In a template: a list of this many operands."""


class Whole:
    """A JAX function over tensors with its gradients. See the module's text.

    Args:
        function: takes the composite's arguments in schema order as a lowering does; returns an array or several.
        op: the composite, or None for a function of our own (then `name` and `parts` are needed).
        static: names of float arguments that shape the program.
        parts: a torch function of the same arguments and results, made of other operators.

    Example:
        >>> norm = Whole(lambda x: x / abs(x).sum(), name="shares", parts=lambda x: x / x.abs().sum())
        >>> x = torch.tensor([1.0, 3.0], device="jax", requires_grad=True)
        >>> y = norm(x)
        >>> y.tolist()
        [0.25, 0.75]
        >>> torch.autograd.grad(y[0], x)[0].tolist()
        [0.1875, -0.0625]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        op: torch._ops.OpOverload | None = None,
        *,
        name: str = "",
        static: Iterable[str] = (),
        parts: Callable[..., Any] | None = None,
    ):
        self.function = function
        self.operation = Operation(op, Lowering(function, frozenset(static)), name=name)
        self.signature = self.operation.signature
        self.static = {
            i for i, n in enumerate(self.signature.names if self.signature else ()) if n in static
        }
        self.parts = parts or self._decomposed
        self._gradients: dict[Any, Whole] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.signature is not None:
            args = self.signature.complete(args, kwargs)
        template, operands = self._split(args)
        tensors = [a for a in operands if isinstance(a, Tensor)]
        if private.interposed(tensors):
            return self.parts(*args)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return _Recorded.apply(self, template, *operands)
        return self.operation(*args)

    def _decomposed(self, *args: Any) -> Any:
        assert self.signature is not None
        positional = self.signature.positional
        names = self.signature.names[positional:]
        return self.signature.op.decompose(
            *args[:positional], **dict(zip(names, args[positional:], strict=True))
        )

    def _split(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
        template: list[Any] = []
        operands: list[Any] = []
        for i, a in enumerate(args):
            if isinstance(a, Tensor) or (type(a) is float and i not in self.static):
                template.append(_ONE)
                operands.append(a)
            elif isinstance(a, list | tuple):
                if any(isinstance(item, Tensor) for item in a):
                    template.append(_Several(len(a)))
                    operands += a
                else:
                    template.append(tuple(a))
            else:
                template.append(a)
        return tuple(template), operands

    def gradient(
        self, template: tuple[Any, ...], count: int, wanted: tuple[int, ...], missing: Any
    ) -> Whole:
        """The gradients of the operands at `wanted`: a function of `count` operands and then a cotangent per result.

        Args:
            missing: which cotangents are None.
        """
        key = (tuple(_exact(a) for a in template), count, wanted, missing)
        found = self._gradients.get(key)
        if found is None:
            found = self._gradients[key] = Whole(
                _pullback(self.function, template, count, wanted),
                name=f"{self.operation.name}_backward",
                parts=_pullback_by_parts(self.parts, template, count, wanted),
            )
        return found


class _Recorded(torch.autograd.Function):
    """A call of a Whole that autograd records."""

    @staticmethod
    def forward(ctx: Any, whole: Whole, template: tuple[Any, ...], *operands: Any) -> Any:
        results = whole.operation(*_filled(template, operands))
        ctx.whole, ctx.template = whole, template
        ctx.numbers = [None if isinstance(a, Tensor) else a for a in operands]
        ctx.save_for_backward(*[a if isinstance(a, Tensor) else None for a in operands])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[r for r in _tuple(results) if not (r.is_floating_point() or r.is_complex())]
        )
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        operands = [
            n if t is None else t for t, n in zip(ctx.saved_tensors, ctx.numbers, strict=True)
        ]
        wanted = tuple(i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed)
        grads: list[Any] = [None] * len(operands)
        missing = tuple(c is None for c in cotangents)
        if wanted and not all(missing):
            function = ctx.whole.gradient(ctx.template, len(operands), wanted, missing)
            for i, g in zip(wanted, _tuple(function(*operands, *cotangents)), strict=True):
                grads[i] = g
        return None, None, *grads


def _pullback(
    function: Callable[..., Any], template: tuple[Any, ...], count: int, wanted: tuple[int, ...]
) -> Callable[..., Any]:
    """The gradient as a JAX function. A result without a cotangent takes no part."""

    def pullback(*given: Any) -> tuple[Any, ...]:
        operands, cotangents = given[:count], given[count:]

        def forward(*primals: Any) -> tuple[Any, ...]:
            replaced = list(operands)
            for i, x in zip(wanted, primals, strict=True):
                replaced[i] = x
            results = _tuple(function(*_filled(template, replaced)))
            return tuple(r for r, c in zip(results, cotangents, strict=True) if c is not None)

        known = tuple(c for c in cotangents if c is not None)
        return vjp(forward, tuple(operands[i] for i in wanted), known)

    return pullback


def _pullback_by_parts(
    parts: Callable[..., Any], template: tuple[Any, ...], count: int, wanted: tuple[int, ...]
) -> Callable[..., Any]:
    """The gradient as a torch function."""

    def pullback(*given: Any) -> tuple[Any, ...]:
        operands, cotangents = list(given[:count]), given[count:]
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Aliases: one operand may have been computed from another, and that path is not ours.
            for i in wanted:
                operands[i] = operands[i].view_as(operands[i])
            results = _tuple(parts(*_filled(template, operands)))
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


def _filled(template: tuple[Any, ...], operands: Any) -> list[Any]:
    """The call's arguments, put together again."""
    rest = iter(operands)

    def argument(entry: Any) -> Any:
        if entry is _ONE:
            return next(rest)
        return [next(rest) for _ in range(entry)] if type(entry) is _Several else entry

    return [argument(entry) for entry in template]


def _exact(entry: Any) -> Any:
    """A template's entry for a key."""
    if isinstance(entry, tuple):
        return tuple(exact(item) for item in entry)
    return exact(entry)


def _tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, list | tuple) else (results,)
