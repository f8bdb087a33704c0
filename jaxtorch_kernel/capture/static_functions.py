"""Eager calls of functions that take functions: one program per signature, even if the function object is recreated.

    def forward(self, xs):
        def step(h, x): ...                   # another function object at each call, the same code and closure
        return jaxtorch.scan(step, self.h0, xs)

`StaticFunctions` turns such a function into a static argument of `pure`: two are equal if their code and closures are
equal. After the call it has only weak references, so that a model that is no longer used is freed. Everything else that
the function reads is recorded during the trace, as for any function.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch

from ..base.torch_private import pytree
from ..programs.trees import is_device_tensor
from .dependencies.open_recorders import declare_input
from .pure import Pure
from .reach import contents_of
from .signature import ByIdentity, by_value

T = TypeVar("T")
_BY_VALUE = (int, float, complex, bool, str, bytes, torch.Generator, type(None), pytree.TreeSpec)


class StaticFunctions:
    """Functions or modules as a static argument.

    Attributes:
        values: the functions, during the call only.
        tensors: tensors of the device in their closures, which are arguments of the program.
    """

    __slots__ = ("_hash", "_parts", "tensors", "values")

    def __init__(self, *values: Callable[..., object]):
        self.values = values
        self.tensors: list[torch.Tensor] = []
        self._parts = tuple(part for value in values for part in _parts(value, self.tensors, set()))
        self._hash = hash(self._parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticFunctions) and self._parts == other._parts

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> tuple[Callable[..., object], ...]:
        """The functions, reading these tensors instead of `self.tensors`."""
        replacements = dict(zip(map(id, self.tensors), tensors, strict=True))
        for value in self.values:
            declare_input(value)
        return tuple(_replaced(value, replacements, set()) for value in self.values)


def _parts(value: Any, tensors: list[torch.Tensor], seen: set[int]) -> list[Hashable]:
    """The parts by which a value is compared. Its tensors are appended to `tensors`; their indices represent them.

    Args:
        value: a function, or a value that a function refers to.
        tensors: the tensors so far.
        seen: the functions around it, by identity: a function may refer to itself.
    """
    if is_device_tensor(value):
        if not any(value is t for t in tensors):
            tensors.append(value)
        return [next(i for i, t in enumerate(tensors) if value is t)]
    if isinstance(value, _BY_VALUE):
        return [by_value(value)]
    head: Hashable
    if isinstance(value, functools.partial):
        items, head = [value.func, *value.args, *value.keywords.values()], tuple(value.keywords)
    elif hasattr(value, "__func__"):
        items, head = [value.__func__], ByIdentity(value.__self__)
    elif hasattr(value, "__code__") and id(value) not in seen:
        head = value.__code__
        items = [contents_of(cell) for cell in value.__closure__ or ()]
        items += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        seen = seen | {id(value)}
    else:
        return [ByIdentity(value)]
    return [head, *(part for item in items for part in _parts(item, tensors, seen))]


def _replaced(value: Any, tensors: dict[int, torch.Tensor], seen: set[int]) -> Any:
    """The value, created again if tensors in its closure are replaced."""
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
    # A cell whose contents stay is shared with the original, so that `nonlocal` writes to the same variable.
    cells = []
    for cell in value.__closure__ or ():
        old = contents_of(cell)
        new = _replaced(old, tensors, seen)
        cells.append(cell if new is old else types.CellType(new))
    defaults = tuple(_replaced(v, tensors, seen) for v in value.__defaults__ or ()) or None
    copy = types.FunctionType(
        value.__code__, value.__globals__, value.__name__, defaults, tuple(cells) or None
    )
    copy.__kwdefaults__ = {
        k: _replaced(v, tensors, seen) for k, v in (value.__kwdefaults__ or {}).items()
    } or None
    return copy


def eager(function: Callable[..., T]) -> Callable[..., T]:
    """`function(functions, *arguments)` as a compiled program for each signature, called with `StaticFunctions`."""

    def program(static: StaticFunctions, tensors: list[torch.Tensor], *args: object) -> T:
        return function(static.with_tensors(tensors), *args)

    # The program's inputs are called as the parameters.
    parameters = inspect.signature(program).parameters
    rest = list(inspect.signature(function).parameters.values())[1:]
    program.__signature__ = inspect.Signature([parameters["static"], parameters["tensors"], *rest])  # type: ignore[attr-defined]  # as in `base/naming.py`
    compiled = Pure(program, function.__name__.strip("_"), 256)
    compiled.source.kind = "scan"

    @functools.wraps(function)
    def call(static: StaticFunctions, *args: object) -> T:
        # A tensor of a closure that is also an argument is passed as a copy: the program has two inputs for it.
        leaves = {id(leaf) for leaf in pytree.tree_leaves(args)}
        tensors = [t.clone() if id(t) in leaves else t for t in static.tensors]
        try:
            result: T = compiled(static, tensors, *args)
            return result
        finally:
            static.values, static.tensors = (), []

    return call
