"""A module's full backward hooks inside code that `jax.vjp` differentiates.

torch inserts an identity before the module and one after it, and passes the gradients of these nodes to the hooks. Here
each identity is a `jax.custom_vjp`. The one before the module needs the gradients of the one after it. JAX computes
those first, in the same run of Python, so they are passed through an attribute. The computation of the user's hooks is
traced after the module has run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.hooks import BackwardHook

from ..operators.bridge import Bridge, avals_of
from ..programs.compiled import CompiledFunction
from ..storage import placement
from .bodies import Body, aval_of, read, trace_body
from .custom import is_ours

Tensor = torch.Tensor


class TracedBackwardHook(BackwardHook):
    """torch's `BackwardHook` with other identities. The closures that call the user's hooks are torch's."""

    def __init__(self, module: Any, user_hooks: Any, user_pre_hooks: Any):
        super().__init__(module, user_hooks, user_pre_hooks)
        self._what = f"a backward hook of {type(module).__name__}"
        self._entering = True
        self._enter: Any = (
            None  # torch's closure, places of the tensors, of those with a gradient, their avals
        )
        self._zeros: dict[int, Any] = {}  # those without one: size and dtype
        self._link = SimpleNamespace(body=None, given=None)

    def setup_output_hook(self, args: Any) -> Any:
        """As torch's."""
        self._entering = False
        return super().setup_output_hook(args)

    def _apply_on_tensors(self, fn: Callable[[Any], None], args: Any) -> Any:
        places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        differentiable = [i for i in places if is_ours(args[i]) and args[i].requires_grad]
        if not differentiable or not torch.is_grad_enabled():
            return args, None
        node = SimpleNamespace()
        node.register_hook = lambda hook: setattr(node, "hook", hook)
        fn(node)
        tensors = [args[i] for i in differentiable]
        own = node.hook, places, differentiable, [aval_of(t) for t in tensors]
        rest = {i: (args[i].shape, args[i].dtype) for i in places if i not in differentiable}
        if self._entering:
            self._enter, self._zeros = own, rest
            results = _identity(tensors, _entered(self._link), ())
        else:
            self.n_outputs, self.output_tensors_index = len(args), places  # type: ignore[assignment]  # None there
            with torch.no_grad():
                leave, enter = self._bodies(own)
            self._link.body = enter and enter.jaxpr
            constants = leave.constants, enter and enter.constants
            results = _identity(tensors, _left(self._link, leave.jaxpr), constants)
        made = list(args)
        for i, result in zip(differentiable, results, strict=True):
            made[i] = result
        return (tuple(made) if type(args) is tuple else type(args)(*made)), places

    def _bodies(self, own: Any) -> tuple[Body, Body | None]:
        """What the hooks do to the gradients of the outputs, and from these and their own to those of the inputs."""
        hook, places, differentiable, avals = own

        def packed(given: Any, differentiable: list[int], places: list[int]) -> list[Any]:
            found = dict(zip(differentiable, given, strict=True))
            return [found.get(i) for i in places]

        def leave(*given: Tensor) -> list[Tensor]:
            results = hook(None, packed(given, differentiable, places))
            self.grad_outputs = None  # of this trace
            return _those(results, places, differentiable, given)

        body = trace_body(leave, avals, self._what)
        if self._enter is None:
            return body, None
        inner, places_in, differentiable_in, avals_in = self._enter

        def enter(*given: Tensor) -> list[Tensor]:
            own, outer = given[: len(differentiable_in)], given[len(differentiable_in) :]
            outputs = packed(outer, differentiable, places)
            self.grad_outputs = self._pack_with_none(places, outputs, self.n_outputs)
            gradients = packed(own, differentiable_in, places_in)
            for k, i in enumerate(places_in):
                if i in self._zeros:  # which needs none: torch's own hooks see zeros
                    size, dtype = self._zeros[i]
                    gradients[k] = torch.zeros(size, dtype=dtype, device="jax")
            return _those(inner(gradients, None), places_in, differentiable_in, own)

        return body, trace_body(enter, [*avals_in, *avals], self._what)


def _those(results: Any, places: list[int], differentiable: list[int], given: Any) -> list[Tensor]:
    """Of a hook's results, the gradients that are wanted."""
    found = dict(zip(places, results, strict=True))
    pairs = zip(differentiable, given, strict=True)
    return [torch.zeros_like(g) if found[i] is None else found[i] for i, g in pairs]


def _identity(tensors: list[Tensor], pull_back: Any, constants: Any) -> Any:
    """The tensors, with a gradient of their own."""

    @jax.custom_vjp
    def same(constants: Any, arrays: Any) -> Any:
        return arrays

    same.defvjp(lambda constants, arrays: (arrays, constants), pull_back)
    arrays = [read(t) for t in tensors]
    compiled = CompiledFunction(
        lambda *own: (same(constants, list(own)), []),
        avals_of(arrays),
        range(len(arrays)),
        name="backward hook",
    )
    return Bridge(compiled, placement.current())(tensors, arrays)[0]


def _left(link: SimpleNamespace, jaxpr: Any) -> Any:
    def pull_back(constants: Any, cotangents: Any) -> Any:
        results = _run(jaxpr, constants[0], cotangents)
        link.given = constants[1], results
        return None, results

    return pull_back


def _entered(link: SimpleNamespace) -> Any:
    def pull_back(_: Any, cotangents: Any) -> Any:
        given, link.given = link.given, None
        if given is None:  # no gradient came by the outputs
            return None, cotangents
        return None, _run(link.body, given[0], [*cotangents, *given[1]])

    return pull_back


def _run(jaxpr: Any, constants: Any, cotangents: Any) -> list[Any]:
    # torch's cotangents are the conjugates of JAX's.
    key = np.zeros(2, np.uint32)
    *results, _ = jax.core.eval_jaxpr(jaxpr, constants, key, *(c.conj() for c in cotangents))
    return [r.conj() for r in results]
