"""Explains why a function under `pure` or `jit` is retraced: the dependencies of a call's program, by name.

The key of a program (`signature.py`) is made for fast lookup. This module holds the same information in readable form;
it is computed only when a call is traced.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from ..base.ambient import NAMES, ambient
from ..base.options import config
from ..base.torch_private import pytree
from ..programs.site import describe, origin, site_of
from ..programs.stats import Reason, Source
from .dependencies.guard import Change
from .dependencies.tokens import Same, Structure, look, token
from .reasons import State, changes, distance, outermost, reasons
from .signature import Arguments

_MOST_STATES = 8  # of one function, that a new one is compared with
_KINDS = ("pure", "jit", "cell", "compile")  # that warn


def state_of(function: Callable[..., Any], arguments: Arguments) -> State:
    """What the program of a call depends on: path -> what stands there."""
    args, kwargs = pytree.tree_unflatten(arguments.leaves, arguments.structure)
    state: State = {}
    for name, value in _by_name(function, args, kwargs).items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            looked = look if isinstance(leaf, torch.Tensor) else _static
            state[name + pytree.keystr(path)] = looked(leaf)
    named = dict(zip(NAMES, ambient(), strict=True))
    options = named.pop("jaxtorch.config")
    state |= {f.name: token(getattr(options, f.name)) for f in fields(options)}
    return state | {name: token(value) for name, value in named.items()}


def _by_name(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
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


def _static(leaf: Any) -> Any:
    """As `signature.by_value` has it: by value, or by identity."""
    kind: Any = type(leaf)
    if leaf is not None and (kind.__hash__ is None or kind.__eq__ is object.__eq__):
        return Same(kind.__name__, id(leaf))
    known = token(leaf)
    return Structure(kind.__name__, (hash(leaf),)) if isinstance(known, Same) else known


def why(source: Source, state: State, kept: list[Any]) -> list[Reason]:
    """What differs from the trace of the source that is most like this one; nothing for its first.

    Args:
        state: what the call looks like.
        kept: the programs that there are, latest first, each of which says what does not hold for it.
    """
    candidates = [
        outermost(changes(r.state, state) + r.changes()) for r in kept if r.state is not None
    ]
    if not candidates:
        states = [t.state for t in source.history if t.state is not None]
        candidates = [changes(old, state) for old in reversed(states)]
    near: list[Change] = min(candidates, key=distance, default=[])
    return reasons(near)


def forget_old_states(source: Source) -> None:
    """Keep only what the next trace is compared with."""
    for trace in list(source.history)[:-_MOST_STATES]:
        trace.state = None


def warn_if_often(source: Source) -> None:
    """Warn once of a source that was traced more often than `jaxtorch.config.max_traces`."""
    limit = config.max_traces
    if limit is None or source.warned or source.traces <= limit or source.kind not in _KINDS:
        return
    source.warned = True
    latest = next((t.reasons for t in reversed(source.history) if t.reasons), [])
    cause = f" The last time because {latest[0].what}. {latest[0].advice}" if latest else ""
    found = origin(None)
    file, line = site_of(found) if found is not None else ("<unknown>", 0)
    where = describe(*found[1:]) if found is not None else ""
    warnings.warn_explicit(
        f"`{source.name}` was traced {source.traces} times{where}, each of them a compilation.{cause} "
        "jaxtorch.insight.explain_recompiles() tells of all; jaxtorch.config.update(max_traces=None) is silence.",
        UserWarning,
        file,
        line,
    )
