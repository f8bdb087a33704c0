"""Eager calls of functions that take functions: one compiled program a signature, also where the function is made anew.

    def forward(self, xs):
        def step(h, x): ...                   # another function object at each call, the same code and closure
        return jaxtorch.scan(step, self.h0, xs)

`Held` makes such a function an argument that `pure` can key by: two are equal where their code, their closure and the
plain globals they name are. It refers to all that weakly once the call is over, so that a dropped model is freed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .guards import _GUARDED, _contents, _named_values
from .pure import Pure

_BY_VALUE = (*(t for t in _GUARDED if t not in (tuple, torch.Tensor)), pytree.TreeSpec)


class Held:
    """Functions or modules as a static argument. `values` are there during the call alone."""

    __slots__ = ("_hash", "_parts", "values")

    def __init__(self, *values: Any):
        self.values: tuple[Any, ...] = values
        self._parts = tuple(part for value in values for part in _parts(value))
        self._hash = hash(self._parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._parts == other._parts


class _Same:
    """An object by identity, held weakly if it can be."""

    __slots__ = ("_id", "_reference")

    def __init__(self, value: Any):
        self._id = id(value)
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        # The same identity may have been given twice: only a living one counts.
        return (
            isinstance(other, _Same)
            and self._id == other._id
            and self._reference() is other._reference() is not None
        )


def _parts(value: Any) -> list[Any]:
    """What a function or module is told apart by."""
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
        return [tuple(value.keywords), *(part for v in inner for part in _parts(v))]
    if hasattr(value, "__func__"):
        return [_Same(value.__self__), *_parts(value.__func__)]
    code = getattr(value, "__code__", None)
    if code is None:
        return [(type(value), value) if isinstance(value, _BY_VALUE) else _Same(value)]
    contents = [_contents(cell) for cell in value.__closure__ or ()]
    contents += [v for get, name, v in _named_values(value) if get is not _contents]
    contents += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    parts: list[Any] = [code]
    for item in contents:
        nested = item is not value and hasattr(item, "__closure__")
        if nested and item.__closure__ and value not in map(_contents, item.__closure__):
            parts += _parts(item)  # a function of the same cell or method, made anew with this one
        else:
            parts.append((type(item), item) if isinstance(item, _BY_VALUE) else _Same(item))
    return parts


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(held, *arguments)` as a compiled program for each signature; `held` is a `Held`."""
    compiled = Pure(function, function.__name__.strip("_"), 256)

    @functools.wraps(function)
    def call(held: Held, *args: Any) -> Any:
        try:
            return compiled(held, *args)
        finally:
            held.values = ()

    return call
