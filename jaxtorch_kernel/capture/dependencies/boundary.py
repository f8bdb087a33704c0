"""Checks what enters and leaves captured code: containers among its arguments, objects among its results."""

from __future__ import annotations

import functools
import types
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TypeAlias

import torch

from ...base.torch_private import pytree
from ..errors import CaptureError
from . import outside
from .fresh_objects import SHARED, FreshObjects
from .notes import Notes
from .tokens import is_plain

Tensor = torch.Tensor

Flat: TypeAlias = tuple[list[object], pytree.TreeSpec]  # leaves and structure

# Results of these types are returned as they are.
_SHARED: tuple[type, ...] = (Tensor, type, *SHARED)
_SHARED += (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    functools.partial,
)


def check_arguments(before: Flat, after: Flat) -> None:
    """Refuse code that modifies a container among its arguments: it has a copy, so the caller's would not change.

    Args:
        before, after: the leaves and the structure of the arguments.

    Raises:
        CaptureError: if they differ.
    """
    same = before[1] == after[1] and all(a is b for a, b in zip(before[0], after[0], strict=True))
    if not same:
        raise CaptureError(
            "the captured code modifies a list or a dictionary among its arguments",
            "Modify a copy (`batch = dict(batch)`), or modify the argument outside the captured code.",
        )


def fresh_results(leaves: Sequence[object], notes: Notes) -> FreshObjects | None:
    """The objects that the code created and returns, if there are any: each run returns copies.

    Raises:
        CaptureError: if one can be consumed only once.
        NeedsNumber: if one holds a number that varies.
    """

    def is_older(value: object) -> bool:
        return notes.objects.is_preexisting(value) and not notes.objects.is_created(value)

    fresh: dict[int, object] = {}
    for leaf in leaves:
        if isinstance(leaf, types.GeneratorType) and leaf.gi_frame is None:
            continue  # the code itself has exhausted it
        kind = type(leaf).__name__
        if outside.is_iterator(leaf) or isinstance(leaf, Coroutine | AsyncIterator):
            raise CaptureError(
                f"the captured code returns a {kind}, which can be consumed only once",
                "Return a list or a tuple.",
            )
        if isinstance(leaf, _SHARED) or is_plain(leaf):
            continue
        if not is_older(leaf):
            fresh[id(leaf)] = leaf
    return FreshObjects([*fresh.values()], is_older) if fresh else None
