"""Explains why a function under `pure` or `jit` is retraced: the dependencies of a call's program, by name.

The key of a program (`signature.py`) is made for fast lookup. This module holds the same information in readable form;
it is computed only when a call is traced.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Protocol

import torch

from ..base.ambient import NAMES, ambient
from ..base.options import config
from ..base.torch_private import pytree
from ..programs.site import describe, origin, site_of
from ..programs.stats import FunctionRecord, Reason
from .dependencies.guard import Change
from .dependencies.tokens import AnyNumber, Identity, Structure, look, token
from .numbers import Varying
from .reasons import State, changes, distance, outermost, reasons
from .signature import Arguments

_MOST_STATES = 8  # earlier states of a function that a new one is compared with
_KINDS = ("pure", "jit", "compile")  # the kinds of sources that warn about many traces


class Traced(Protocol):
    """A program that explains why it cannot run a call: a `Replay`."""

    state: State | None

    def changes(self) -> list[Change]:
        """The guards that fail."""


def state_of(function: Callable[..., object], arguments: Arguments) -> State:
    """What the program of a call depends on."""
    args, kwargs = pytree.tree_unflatten(arguments.leaves, arguments.structure)
    state: State = {}
    for name, value in _by_name(function, args, kwargs).items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            token_of = look if isinstance(leaf, torch.Tensor) else _static
            state[name + pytree.keystr(path)] = token_of(leaf)
    named = dict(zip(NAMES, ambient(), strict=True))
    options = named.pop("jaxtorch.config")
    state |= {f.name: token(getattr(options, f.name)) for f in fields(options)}
    return state | {name: token(value) for name, value in named.items()}


def _by_name(
    function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, object]:
    """The arguments under the names that the function gives them."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called)
        bound = dict(parameters.bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # a builtin, or a call that the trace itself will refuse
        return {f"args[{i}]": a for i, a in enumerate(args)} | kwargs
    for name, parameter in parameters.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return bound


def _static(leaf: object) -> object:
    """The token of an argument that is not a tensor, by value or by identity as in `signature.by_value`."""
    if isinstance(leaf, Varying):
        return AnyNumber(leaf.kind)
    kind, known = type(leaf), token(leaf)
    if not isinstance(known, Identity):
        return known
    if kind.__eq__ is object.__eq__:
        return Identity(kind.__name__, id(leaf))
    try:
        return Structure(kind.__name__, (hash(leaf),))
    except (TypeError, ValueError):  # a list; a memoryview that can be written
        return Identity(kind.__name__, id(leaf))


def why(source: FunctionRecord, state: State, programs: Sequence[Traced]) -> list[Reason]:
    """The differences from the most similar earlier trace of the source; nothing for its first trace.

    Args:
        source: what is traced.
        state: what the program of the call depends on.
        programs: the programs that exist, latest first.
    """
    candidates = [
        outermost(changes(p.state, state) + p.changes()) for p in programs if p.state is not None
    ]
    if not candidates:
        states = [t.state for t in source.history if t.state is not None]
        candidates = [changes(old, state) for old in reversed(states)]
    near: list[Change] = min(candidates, key=distance, default=[])
    return reasons(near)


def forget_old_states(source: FunctionRecord) -> None:
    """Drop the states that the next trace is not compared with."""
    for trace in list(source.history)[:-_MOST_STATES]:
        trace.state = None


def warn_if_often(source: FunctionRecord) -> None:
    """Warn once if a source was traced more often than `jaxtorch.config.max_traces`."""
    limit = config.max_traces
    if limit is None or source.warned or source.traces <= limit or source.kind not in _KINDS:
        return
    source.warned = True
    latest = next((t.reasons for t in reversed(source.history) if t.reasons), [])
    cause = f" The last time because {latest[0].what}. {latest[0].advice}" if latest else ""
    caller = origin(None)
    file, line = site_of(caller) if caller is not None else ("<unknown>", 0)
    where = describe(*caller[1:]) if caller is not None else ""
    warnings.warn_explicit(
        f"`{source.title or source.name}` was traced {source.traces} times{where}, each of them a compilation.{cause} "
        "jaxtorch.insight.explain_recompiles() lists all retraces; "
        "jaxtorch.config.update(max_traces=None) turns this warning off.",
        UserWarning,
        file,
        line,
    )
