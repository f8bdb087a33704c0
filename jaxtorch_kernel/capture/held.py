"""Eager calls of functions that take functions: one program per signature, even if the function object is recreated.

    def forward(self, xs):
        def step(h, x): ...                   # another function object at each call, the same code and closure
        return jaxtorch.scan(step, self.h0, xs)

`Held` turns such a function into a static argument of `pure`: two are equal if their code and closures are equal. After
the call it holds only weak references, so that a dropped model is freed. Everything else that the function reads is
recorded during the trace, as for any function.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..base.torch_private import pytree
from .dependencies.recorder import handed_over
from .pure import Pure
from .reach import _contents
from .signature import by_value

_BY_VALUE = (int, float, complex, bool, str, bytes, torch.Generator, type(None), pytree.TreeSpec)


class Held:
    """Functions or modules as a static argument. `values` are there during the call alone.

    Tensors of the device in the functions' closures are arguments of the program: `tensors`.
    """

    __slots__ = ("_hash", "_parts", "tensors", "values")

    def __init__(self, *values: Any):
        self.values: tuple[Any, ...] = values
        self.tensors: list[torch.Tensor] = []
        self._parts = tuple(part for value in values for part in _parts(value, self.tensors, set()))
        self._hash = hash(self._parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self._parts == other._parts

    def reading(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The values with these tensors in the place of their own."""
        own = dict(zip(map(id, self.tensors), tensors, strict=True))
        for value in self.values:
            handed_over(value)
        return tuple(_replaced(value, own, set()) for value in self.values)


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


def _parts(value: Any, tensors: list[torch.Tensor], seen: set[int]) -> list[Any]:
    """The identity of a value. Its tensors are collected in `tensors`."""
    if isinstance(value, torch.Tensor) and value.device.type == "jax":
        if not any(value is t for t in tensors):
            tensors.append(value)
        return [next(i for i, t in enumerate(tensors) if value is t)]
    if isinstance(value, _BY_VALUE):
        return [by_value(value)]
    head: Any
    if isinstance(value, functools.partial):
        items, head = [value.func, *value.args, *value.keywords.values()], tuple(value.keywords)
    elif hasattr(value, "__func__"):
        items, head = [value.__func__], _Same(value.__self__)
    elif hasattr(value, "__code__") and id(value) not in seen:
        head = value.__code__
        items = [_contents(cell) for cell in value.__closure__ or ()]
        items += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        seen = seen | {id(value)}  # it may name itself
    else:
        return [_Same(value)]
    return [head, *(part for item in items for part in _parts(item, tensors, seen))]


def _replaced(value: Any, tensors: dict[int, torch.Tensor], seen: set[int]) -> Any:
    """The value, recreated if tensors in its closure are replaced."""
    if id(value) in tensors:
        return tensors[id(value)]
    if isinstance(value, functools.partial):
        function, *args = (_replaced(v, tensors, seen) for v in (value.func, *value.args))
        keywords = {k: _replaced(v, tensors, seen) for k, v in value.keywords.items()}
        return functools.partial(function, *args, **keywords)
    if hasattr(value, "__func__"):
        return types.MethodType(_replaced(value.__func__, tensors, seen), value.__self__)
    if not hasattr(value, "__code__") or id(value) in seen:
        return value
    seen = seen | {id(value)}
    # A cell that stays is the same object, so that `nonlocal` means what it did.
    cells = []
    for cell in value.__closure__ or ():
        old = _contents(cell)
        new = _replaced(old, tensors, seen)
        cells.append(cell if new is old else types.CellType(new))
    defaults = tuple(_replaced(v, tensors, seen) for v in value.__defaults__ or ()) or None
    made = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, defaults, tuple(cells) or None
    )
    made.__kwdefaults__ = {
        k: _replaced(v, tensors, seen) for k, v in (value.__kwdefaults__ or {}).items()
    } or None
    return made


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(values, *arguments)` as a compiled program for each signature, called with a `Held` of the values."""

    def program(held: Held, tensors: list[torch.Tensor], *args: Any) -> Any:
        return function(held.reading(tensors), *args)

    compiled = Pure(program, function.__name__.strip("_"), 256)
    compiled.source.kind = "scan"

    @functools.wraps(function)
    def call(held: Held, *args: Any) -> Any:
        # A tensor that is an argument besides is two to the program.
        given = {id(leaf) for leaf in pytree.tree_leaves(args)}
        tensors = [t.clone() if id(t) in given else t for t in held.tensors]
        try:
            return compiled(held, tensors, *args)
        finally:
            held.values, held.tensors = (), []

    return call
