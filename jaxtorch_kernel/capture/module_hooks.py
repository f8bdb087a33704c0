"""A module's full backward hooks inside code that `jax.vjp` differentiates.

torch inserts an identity before the module and one after it, and passes the gradients of these nodes to the hooks. Here
each identity is a `jax.custom_vjp`. The one before the module also needs the gradients that reach the one after it. JAX
computes those first, in the same run of Python, so they are passed through a `_Link`. The user's hooks are traced after
the module has run, when the shapes on both sides are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from jax.extend.core import Jaxpr
from torch.utils.hooks import BackwardHook

from ..operators.bridge import Bridge, avals_of
from ..programs.compiled import CompiledFunction
from ..programs.trees import is_device_tensor
from ..storage import placement
from .bodies import Body, aval_of, pull_back, read, trace_body

Tensor = torch.Tensor
Arrays = Sequence[jax.Array]
# The gradients of a module's arguments or results, in their order; None for what has none.
Gradients = list[Tensor | None]
# A hook of a node of torch's graph: (gradients of its inputs, of its outputs) -> other gradients of its inputs.
Hook = Callable[..., Sequence[Tensor | None]]
# (constants, cotangents) -> (None, for the constants; gradients)
PullBack = Callable[[Any, Arrays], tuple[None, Arrays]]


class _Node:
    """Takes the hook that torch registers on a node of its graph."""

    hook: Hook

    def register_hook(self, hook: Hook) -> None:
        self.hook = hook


@dataclass
class _Side:
    """The tensors on one side of a module: its arguments or its results.

    Attributes:
        hook: torch's closure that calls the user's hooks.
        indices: which of the arguments or results are tensors.
        differentiable: which of them have a gradient.
        avals: of those.
        others: size and dtype of the other tensors, by their index.
    """

    hook: Hook
    indices: list[int]
    differentiable: list[int]
    avals: list[jax.ShapeDtypeStruct]
    others: dict[int, tuple[torch.Size, torch.dtype]]

    def gradients(self, given: Sequence[Tensor]) -> Gradients:
        """The gradients of all tensors, from those of the differentiable ones."""
        by_index = dict(zip(self.differentiable, given, strict=True))
        return [by_index.get(i) for i in self.indices]

    def wanted(self, results: Sequence[Tensor | None], given: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the differentiable tensors, from what the hook returned. `given`: what it got."""
        by_index = dict(zip(self.indices, results, strict=True))
        pairs = [(by_index[i], g) for i, g in zip(self.differentiable, given, strict=True)]
        return [torch.zeros_like(g) if result is None else result for result, g in pairs]


@dataclass
class _Link:
    """What the identity after a module passes to the one before it.

    Attributes:
        jaxpr: the hooks' computation for the arguments; None if no argument has a gradient.
        outer: its constants, and the gradients of the results, between the two pullbacks.
    """

    jaxpr: Jaxpr | None = None
    outer: tuple[Arrays, list[jax.Array]] | None = None


class TracedBackwardHook(BackwardHook):
    """torch's `BackwardHook` with other identities. The closures that call the user's hooks are torch's."""

    def __init__(
        self,
        module: torch.nn.Module,
        user_hooks: Sequence[Callable[..., object]],
        user_pre_hooks: Sequence[Callable[..., object]],
    ):
        super().__init__(module, user_hooks, user_pre_hooks)
        self._what = f"a backward hook of {type(module).__name__}"
        self._is_before = True  # the identity before the module comes first
        self._before: _Side | None = None
        self._link = _Link()

    def setup_output_hook(self, args: object) -> object:
        """As torch's."""
        self._is_before = False
        return super().setup_output_hook(args)

    def _apply_on_tensors(
        self, fn: Callable[[Any], None], args: Any
    ) -> tuple[object, list[int] | None]:
        indices = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        differentiable = [i for i in indices if is_device_tensor(args[i]) and args[i].requires_grad]
        if not differentiable or not torch.is_grad_enabled():
            return args, None
        node = _Node()
        fn(node)
        tensors = [args[i] for i in differentiable]
        others = {i: (args[i].shape, args[i].dtype) for i in indices if i not in differentiable}
        side = _Side(node.hook, indices, differentiable, list(map(aval_of, tensors)), others)
        if self._is_before:
            self._before = side
            results = _identity(tensors, _pull_back_before(self._link), ())
        else:
            self.n_outputs, self.output_tensors_index = len(args), indices  # type: ignore[assignment]  # None in torch
            with torch.no_grad():
                after, before = self._bodies(side)
            if before is not None:
                self._link.jaxpr = before.jaxpr
            constants = after.constants, [] if before is None else before.constants
            results = _identity(tensors, _pull_back_after(self._link, after.jaxpr), constants)
        replaced = list(args)
        for i, result in zip(differentiable, results, strict=True):
            replaced[i] = result
        return (tuple(replaced) if type(args) is tuple else type(args)(*replaced)), indices

    def _bodies(self, after: _Side) -> tuple[Body, Body | None]:
        """What the hooks do to the gradients of the results; and to those of the arguments, given both."""

        def leave(*given: Tensor) -> list[Tensor]:
            results = after.hook(None, after.gradients(given))
            self.grad_outputs = None  # tracers of this trace, which must not outlive it
            return after.wanted(results, given)

        body = trace_body(leave, after.avals, self._what)
        before = self._before
        if before is None:
            return body, None

        def enter(*given: Tensor) -> list[Tensor]:
            count = len(before.differentiable)
            inner, outer = given[:count], given[count:]
            outputs = after.gradients(outer)
            self.grad_outputs = self._pack_with_none(after.indices, outputs, self.n_outputs)
            gradients = before.gradients(inner)
            for k, i in enumerate(before.indices):
                if i in before.others:  # torch's own hooks get zeros for such a tensor
                    size, dtype = before.others[i]
                    gradients[k] = torch.zeros(size, dtype=dtype, device="jax")
            return before.wanted(before.hook(gradients, None), inner)

        return body, trace_body(enter, [*before.avals, *after.avals], self._what)


def _identity(tensors: list[Tensor], pull_back: PullBack, constants: object) -> Sequence[Tensor]:
    """The tensors, with `pull_back` as the gradient."""

    @jax.custom_vjp
    def same(constants: object, arrays: list[jax.Array]) -> list[jax.Array]:
        return arrays

    same.defvjp(lambda constants, arrays: (arrays, constants), pull_back)
    arrays = [read(t) for t in tensors]
    compiled = CompiledFunction(
        lambda *operands: (same(constants, list(operands)), []),
        avals_of(arrays),
        range(len(arrays)),
        name="backward hook",
    )
    return Bridge(compiled, placement.current())(tensors, arrays)[0]


def _pull_back_after(link: _Link, jaxpr: Jaxpr) -> PullBack:
    def backward(constants: tuple[Arrays, Arrays], cotangents: Arrays) -> tuple[None, Arrays]:
        results = pull_back(jaxpr, constants[0], cotangents)
        link.outer = constants[1], results
        return None, results

    return backward


def _pull_back_before(link: _Link) -> PullBack:
    def backward(_: object, cotangents: Arrays) -> tuple[None, Arrays]:
        outer, link.outer = link.outer, None
        if outer is None or link.jaxpr is None:  # no gradient reached the results
            return None, cotangents
        constants, gradients = outer
        return None, pull_back(link.jaxpr, constants, [*cotangents, *gradients])

    return backward
