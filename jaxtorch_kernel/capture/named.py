"""Arguments selected by name, like `static_argnames` of `jax.jit`, and their leaves in a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .signature import Arguments


class NamedArguments:
    """Some parameters of a function.

    Args:
        function: the function, or a module, whose `forward` is used.
        names: one name or several.

    Raises:
        ValueError: if the function has no such parameter.
    """

    def __init__(self, function: Callable[..., object], names: str | Sequence[str]):
        self.names = {names} if isinstance(names, str) else set(names)
        self.positions: set[int] = set()
        if not self.names:
            return
        called = function.forward if isinstance(function, torch.nn.Module) else function
        parameters = inspect.signature(called).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            unknown = self.names - {p.name for p in parameters}
            if unknown:
                known = ", ".join(p.name for p in parameters) or "none"
                raise ValueError(
                    f"no parameter is named {sorted(unknown)[0]!r}; the function's are: {known}"
                )
        positional = (
            p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        )
        self.positions = {i for i, p in enumerate(positional) if p.name in self.names}

    def indices(self, arguments: Arguments) -> set[int]:
        """The indices of their leaves among the leaves of a call."""
        if not self.names:
            return set()
        args, kwargs = arguments.structure.children()
        chosen = [i in self.positions for i in range(len(args.children()))]
        chosen += [name in self.names for name in kwargs.context]
        indices: set[int] = set()
        first = 0
        for spec, wanted in zip([*args.children(), *kwargs.children()], chosen, strict=True):
            if wanted:
                indices.update(range(first, first + spec.num_leaves))
            first += spec.num_leaves
        return indices
