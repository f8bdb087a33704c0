"""Tokens: what a guard expects of a value, in a form that can be compared and shown.

an int, a string, a dtype ...       Value(type, value)
a user function                     its code, defaults and closure: rerunning the same definition is no change
a user class                        its functions and plain attributes
a tensor of the device              TensorLook: its shape, dtype, gradient and device; its data are an operand.
                                    Inside of the above it is that very tensor: its guard would go on with the old one
anything else                       Same: that very object
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from ...programs.site import is_user_file


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = _Missing()

_DEEPEST = 4  # levels of a value that its token tells apart

# Compared by value: two of them that are equal mean the same to any code.
PLAIN: tuple[type, ...] = (
    int,
    bool,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    range,
    slice,
)
PLAIN += (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
PLAIN += (types.CodeType, enum.Enum, np.generic, np.dtype, type(NotImplemented), _Missing)
CONTAINERS = (list, dict, set, frozenset, tuple, deque, types.MappingProxyType)
_UNSAID: tuple[str, ...] = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__qualname__",
)
_UNSAID += (
    "__dataclass_fields__",
    "__dataclass_params__",
    "__annotations__",
    "__abstractmethods__",
)
_UNSAID += ("__static_attributes__", "__parameters__", "__orig_bases__", "__annotate_func__")


class Value(NamedTuple):
    """Something that is compared by what it is."""

    type: type
    value: Any


class Same(NamedTuple):
    """Something that is compared by identity."""

    kind: str
    number: int


class TensorLook(NamedTuple):
    """The properties of an input tensor that a program depends on."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: str


class Code(NamedTuple):
    """A user function: everything that determines what it does, except what its code reads when it runs."""

    code: types.CodeType
    parts: tuple[Any, ...]


class Structure(NamedTuple):
    """The parts of a user class, a container or a partial."""

    kind: str
    parts: tuple[Any, ...]


class Said(NamedTuple):
    """A change in words, such as "has different contents"."""

    phrase: str


def look(tensor: torch.Tensor) -> TensorLook:
    """The properties of an input tensor that a program depends on."""
    return TensorLook(tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.device.type)


def is_plain(value: Any) -> bool:
    """Whether a value is compared by value, and holds nothing that could change."""
    if type(value) in (tuple, frozenset):
        return all(map(is_plain, value))
    if not isinstance(value, PLAIN):
        return False
    # A string or number of a class of the user's may have attributes.
    return (
        type(value) in PLAIN or not getattr(value, "__dict__", None) or isinstance(value, enum.Enum)
    )


def is_plain_container(value: Any) -> bool:
    """Whether a container that can change holds plain values alone, in containers of that kind."""
    if type(value) in (dict, OrderedDict):
        return all(is_plain(v) or is_plain_container(v) for v in value.values())
    if type(value) in (list, set, deque, tuple):
        return all(is_plain(v) or is_plain_container(v) for v in value)
    return False


def token(value: Any, depth: int = _DEEPEST) -> Any:
    """What a guard expects in place of this value. Equal tokens guarantee the same program."""
    if isinstance(value, float):  # by its digits: nan is nan, and 0.0 is not -0.0
        return Value(type(value), repr(value))
    if isinstance(value, complex | slice | range | np.generic):
        return Value(type(value), repr(value))
    if isinstance(value, PLAIN):
        return Value(type(value), value)
    if isinstance(value, torch.Tensor):
        is_operand = depth == _DEEPEST and value.device.type == "jax"
        return look(value) if is_operand else Same("tensor", id(value))
    if depth:
        if isinstance(value, types.FunctionType) and is_user_file(value.__code__.co_filename):
            return _function(value, depth - 1)
        if isinstance(value, type) and is_users_class(value):
            return _class(value, depth - 1)
        if isinstance(value, functools.partial):
            inner = (value.func, *value.args, *value.keywords.items())
            return Structure("partial", tuple(token(v, depth - 1) for v in inner))
        if type(value) in (list, tuple, deque):
            return Structure(type(value).__name__, tuple(token(v, depth - 1) for v in value))
        if isinstance(value, dict):
            items = tuple((token(k, 1), token(v, depth - 1)) for k, v in value.items())
            return Structure(type(value).__name__, items)
        if isinstance(value, set | frozenset):
            return Value(type(value), frozenset(token(v, depth - 1) for v in value))
    return Same(type(value).__name__, id(value))


def _function(function: types.FunctionType, depth: int) -> Code:
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    parts += vars(function).items()
    tokens = [token(part, depth) for part in parts]
    # Other globals, or another closure, and it is another function: they may change apart from those of the old one.
    tokens.append(Same("globals", id(function.__globals__)))
    tokens += [Same("cell", id(cell)) for cell in function.__closure__ or ()]
    return Code(function.__code__, tuple(tokens))


def _class(cls: type, depth: int) -> Structure:
    parts: list[Any] = [cls.__module__, cls.__qualname__, Same("metaclass", id(type(cls)))]
    parts += [token(base, depth) for base in cls.__bases__]
    for name in class_names(cls):
        value = vars(cls)[name]
        if isinstance(value, property):
            accessors = (value.fget, value.fset, value.fdel)
            parts.append((name, tuple(token(f, depth) for f in accessors)))
        elif not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType):
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            parts.append((name, type(value), token(inner, depth)))
    return Structure("class", tuple(parts))


def class_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """(name, value) of what a class says that code may use: methods as their functions."""
    for name in class_names(cls):
        value = vars(cls)[name]
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        if isinstance(value, types.FunctionType) or is_plain(value):
            yield name, value


def class_names(cls: type) -> list[str]:
    """The names in the dictionary of a class, except those that Python sets."""
    return [name for name in vars(cls) if name not in _UNSAID and not name.startswith("_abc_")]


def is_users_class(cls: type) -> bool:
    """Whether a class is user code: defined in a notebook, or in a file outside installed libraries."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ in ("builtins", "__main__") or module is None:
        return cls.__module__ != "builtins"
    file = getattr(module, "__file__", None)
    return cls.__module__ not in sys.builtin_module_names and (file is None or is_user_file(file))
