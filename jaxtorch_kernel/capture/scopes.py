"""Module paths and `record_function` names as `jax.named_scope`s, so that HLO and profiles attribute work to modules.

During a trace every module call opens a scope. The outermost one has the name of the module's class, inner ones their
path in the calling module, as in `GPT/blocks.0/attention`. JAX propagates them through `jax.vjp`
(`transpose(jvp(GPT))/blocks.0/attention`).

If torch's own autograd runs the backward pass (`jit`), scopes are found from its node numbers, which are sequential.
The numbers at the opening and closing of each scope are recorded, and a node's kernels run under
`transpose(GPT)/blocks.0/attention`. As with `jax.vjp`, they also get the frames of the forward pass: the gradient of a
line belongs to that line.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import jax
from torch.autograd.profiler import record_function
from torch.nn import Module
from torch.nn.modules import module as hooks

from ..base import torch_private as private
from ..base.jax_private import as_if_at, stack
from ..base.replaced import Replaced
from ..programs import tracing

_own = threading.local()
_enter, _exit = record_function.__enter__, record_function.__exit__


class Scopes:
    """The scopes of one trace, opened and closed in its thread.

    Args:
        opening: what is held while a scope of this name is open.
    """

    def __init__(self, opening: Callable[[str], AbstractContextManager[Any]] = jax.named_scope):
        self._opening = opening
        # What opened each (a module or a record_function), its name, its context, and for a module the paths of the
        # modules within, with its own.
        self._stack: list[tuple[Any, str, ExitStack, dict[int, str], str]] = []
        self._numbers: list[int] = []
        self._paths: list[tuple[str, ...]] = []
        # Of the forward pass: the number of the node that a call is part of, and the frames of the call.
        self._calls: list[int] = []
        self._frames: list[Any] = []

    def enter_module(self, module: Module) -> None:
        """Open a module's scope."""
        names, base = self._stack[-1][3:] if self._stack else ({}, "")
        path = names.get(id(module))
        if path is None:  # no part of the module that calls it
            names = {id(m): path for path, m in module.named_modules()}
            self.enter(module, type(module).__name__, names, "")
        else:
            self.enter(module, path.removeprefix(f"{base}."), names, path)

    def enter(
        self, owner: Any, name: str, names: dict[int, str] | None = None, path: str = ""
    ) -> None:
        """Open a scope. Without `names`, the modules called in it go by the paths of the module around."""
        if names is None:
            names, path = self._stack[-1][3:] if self._stack else ({}, "")
        context = ExitStack()
        context.enter_context(self._opening(name))
        self._stack.append((owner, name, context, names, path))
        self._mark()

    def leave(self, owner: Any) -> None:
        """Close the scope that `owner` opened, and with it what was left open inside."""
        if not any(entry[0] is owner for entry in self._stack):
            return  # opened before the trace
        while self._stack:
            left, _, context, *_ = self._stack.pop()
            context.close()
            if left is owner:
                break
        self._mark()

    def close(self) -> None:
        """Close what an error left open."""
        while self._stack:
            self._stack.pop()[2].close()

    def _mark(self) -> None:
        self._numbers.append(private.next_sequence_number())
        self._paths.append(self.path)

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the scopes that are open."""
        return tuple(entry[1] for entry in self._stack)

    def path_of(self, number: int) -> tuple[str, ...]:
        """The names of the scopes that were open when torch created the node with this number."""
        place = bisect_right(self._numbers, number) - 1
        return self._paths[place] if place >= 0 else ()

    def _note(self) -> None:
        number = private.next_sequence_number() - 1
        if not self._calls or number > self._calls[-1]:
            self._calls.append(number)
            self._frames.append(stack())

    def of_call(self) -> AbstractContextManager[Any]:
        """For a call that is traced now: in the backward pass, scope and frames of what it is the gradient of."""
        node = private.current_autograd_node()
        if node is None:
            self._note()
            return nullcontext()
        number = private.sequence_number(node)
        path = self.path_of(number)
        context = ExitStack()
        if self._calls and self._calls[0] <= number <= self._calls[-1]:
            # A view's node has no call of its own: it is noted under the call that reads the view.
            context.enter_context(as_if_at(self._frames[bisect_left(self._calls, number)]))
        for i, name in enumerate(path or ("",)):
            context.enter_context(jax.named_scope(name if i else f"transpose({name})"))
        return context


@contextmanager
def named(trace: tracing.Trace) -> Iterator[None]:
    """Hold while torch code runs under `trace`, an outermost one: opens the scopes in it."""
    if trace.parent is not None:  # whose scopes are open around
        yield
        return
    scopes = trace.scopes = Scopes()
    with _following(scopes):
        yield


@contextmanager
def followed() -> Iterator[Scopes]:
    """Track the scopes of eager code in this thread; they are only for queries and name nothing in JAX."""
    scopes = _own.eager = Scopes(nullcontext)
    try:
        with _following(scopes):
            yield scopes
    finally:
        _own.eager = None


@contextmanager
def _following(scopes: Scopes) -> Iterator[None]:
    """Hold while modules and `record_function` open scopes."""

    def called(module: Module, _: Any) -> None:
        if _scopes() is scopes:
            scopes.enter_module(module)

    def done(module: Module, *_: Any) -> None:
        if _scopes() is scopes:
            scopes.leave(module)

    handles = (
        hooks.register_module_forward_pre_hook(called),
        hooks.register_module_forward_hook(done, always_call=True),
    )
    try:
        with _traced_functions.held():
            yield
    finally:
        for handle in handles:
            handle.remove()
        scopes.close()


def _scopes() -> Scopes | None:
    """Those of this thread's trace, or of its eager code where that is followed."""
    trace = tracing.current()
    return getattr(_own, "eager", None) if trace is None else trace.root.scopes


def _enter_traced(self: record_function) -> Any:
    entered = _enter(self)
    scopes = _scopes()
    if scopes is not None:
        scopes.enter(self, self.name)
    return entered


def _exit_traced(self: record_function, *error: Any) -> Any:
    scopes = _scopes()
    if scopes is not None:
        scopes.leave(self)
    return _exit(self, *error)


__all__ = ["Scopes", "followed", "named"]


_traced_functions = Replaced(
    (record_function, "__enter__", _enter_traced), (record_function, "__exit__", _exit_traced)
)
