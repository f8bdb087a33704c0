"""Module paths and `record_function` names as `jax.named_scope`s, so that HLO and profiles attribute work to modules.

During a trace every module call opens a scope. The outermost scope has the name of the module's class, inner ones their
path in the calling module, as in `GPT/blocks.0/attention`. JAX propagates them through `jax.vjp`
(`transpose(jvp(GPT))/blocks.0/attention`).

If torch's own autograd runs the backward pass (`jit`), the scope of a node is found from its number: torch numbers the
nodes of its graph in the order of creation, and the numbers at the opening and closing of each scope are recorded. The
node's kernels run under `transpose(GPT)/blocks.0/attention`. As with `jax.vjp`, they also get the stack frames of the
forward pass: the gradient of a line belongs to that line.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import jax
from torch.autograd.profiler import record_function
from torch.nn import Module
from torch.nn.modules import module as hooks

from ..base import torch_private as private
from ..base.jax_private import as_if_at, stack
from ..base.replaced import Replaced
from ..programs import tracing

_local = threading.local()
_enter, _exit = record_function.__enter__, record_function.__exit__


class _Scope(NamedTuple):
    """An open scope.

    Attributes:
        owner: what opened it.
        name: its name.
        context: closes it.
        paths: the paths of the submodules of the outermost enclosing module, by identity.
        path: that of the innermost enclosing module.
    """

    owner: Module | record_function
    name: str
    context: ExitStack
    paths: dict[int, str]
    path: str


class Scopes:
    """The scopes of one trace, opened and closed in its thread.

    Args:
        opening: returns the context that is entered while a scope of this name is open.
    """

    def __init__(self, opening: Callable[[str], AbstractContextManager[object]] = jax.named_scope):
        self._opening = opening
        self._stack: list[_Scope] = []
        # The number of the next node whenever a scope was opened or closed, and the names that were open from then on.
        self._numbers: list[int] = []
        self._paths: list[tuple[str, ...]] = []
        # For each call of the forward pass, the number of its node, and its stack frames.
        self._calls: list[int] = []
        self._frames: list[Any] = []

    def enter_module(self, module: Module) -> None:
        """Open a module's scope."""
        paths, base = self._enclosing_paths()
        path = paths.get(id(module))
        if path is None:  # not a submodule of the module that calls it
            paths = {id(m): path for path, m in module.named_modules()}
            self._open(module, type(module).__name__, paths, "")
        else:
            self._open(module, path.removeprefix(f"{base}."), paths, path)

    def enter(self, block: record_function, name: str) -> None:
        """Open the scope of a block. The modules called in it keep their paths in the enclosing module."""
        self._open(block, name, *self._enclosing_paths())

    def leave(self, owner: Module | record_function) -> None:
        """Close the scope that `owner` opened, and all that were left open inside."""
        if not any(scope.owner is owner for scope in self._stack):
            return  # opened before the trace
        while self._stack:
            scope = self._stack.pop()
            scope.context.close()
            if scope.owner is owner:
                break
        self._mark()

    def close(self) -> None:
        """Close the scopes that an error left open."""
        while self._stack:
            self._stack.pop().context.close()

    def _enclosing_paths(self) -> tuple[dict[int, str], str]:
        if not self._stack:
            return {}, ""
        scope = self._stack[-1]
        return scope.paths, scope.path

    def _open(
        self, owner: Module | record_function, name: str, paths: dict[int, str], path: str
    ) -> None:
        context = ExitStack()
        context.enter_context(self._opening(name))
        self._stack.append(_Scope(owner, name, context, paths, path))
        self._mark()

    def _mark(self) -> None:
        self._numbers.append(private.next_sequence_number())
        self._paths.append(self.path)

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the scopes that are open."""
        return tuple(scope.name for scope in self._stack)

    def path_of(self, number: int) -> tuple[str, ...]:
        """The names of the scopes that were open when torch created the node with this number."""
        index = bisect_right(self._numbers, number) - 1
        return self._paths[index] if index >= 0 else ()

    def _note(self) -> None:
        number = private.next_sequence_number() - 1
        if not self._calls or number > self._calls[-1]:
            self._calls.append(number)
            self._frames.append(stack())

    def of_call(self) -> AbstractContextManager[object]:
        """The context for a call that is traced now. In the backward pass it opens the scope of the forward call, and
        sets its stack frames.
        """
        node = private.current_autograd_node()
        if node is None:
            self._note()
            return nullcontext()
        number = private.sequence_number(node)
        path = self.path_of(number)
        context = ExitStack()
        if self._calls and self._calls[0] <= number <= self._calls[-1]:
            # No call is recorded for a view: its node has the frames of the call that reads the view.
            context.enter_context(as_if_at(self._frames[bisect_left(self._calls, number)]))
        for i, name in enumerate(path or ("",)):
            context.enter_context(jax.named_scope(name if i else f"transpose({name})"))
        return context


@contextmanager
def named(trace: tracing.Trace) -> Iterator[None]:
    """Context of torch code that runs under `trace`: the module calls in it open scopes."""
    if trace.parent is not None:  # its scopes are open
        yield
        return
    scopes = trace.scopes = Scopes()
    with _following(scopes):
        yield


@contextmanager
def followed() -> Iterator[Scopes]:
    """Context in which the scopes of eager code in this thread are tracked, for queries only: JAX does not see them."""
    scopes = _local.eager = Scopes(nullcontext)
    try:
        with _following(scopes):
            yield scopes
    finally:
        _local.eager = None


@contextmanager
def _following(scopes: Scopes) -> Iterator[None]:
    """Context in which modules and `record_function` open scopes."""

    def called(module: Module, _: object) -> None:
        if _scopes() is scopes:
            scopes.enter_module(module)

    def done(module: Module, *_: object) -> None:
        if _scopes() is scopes:
            scopes.leave(module)

    handles = (
        hooks.register_module_forward_pre_hook(called),
        hooks.register_module_forward_hook(done, always_call=True),
    )
    try:
        with _traced_functions.applied():
            yield
    finally:
        for handle in handles:
            handle.remove()
        scopes.close()


def _scopes() -> Scopes | None:
    """The scopes of this thread's trace, or of its eager code if that is tracked."""
    trace = tracing.current()
    return getattr(_local, "eager", None) if trace is None else trace.root.scopes


def _enter_traced(self: record_function) -> object:
    entered = _enter(self)
    scopes = _scopes()
    if scopes is not None:
        scopes.enter(self, self.name)
    return entered


def _exit_traced(self: record_function, *error: Any) -> object:
    scopes = _scopes()
    if scopes is not None:
        scopes.leave(self)
    return _exit(self, *error)


__all__ = ["Scopes", "followed", "named"]


_traced_functions = Replaced(
    (record_function, "__enter__", _enter_traced), (record_function, "__exit__", _exit_traced)
)
