"""Tokens: what a guard expects of a value, in a form that can be compared and printed.

The token of a value has everything that a program may depend on. Two values with equal tokens are interchangeable:

an int, a string, a dtype ...       Value(type, value)
a user function                     Code: its code, defaults and closure, so that rerunning a definition is not a change
a user class                        Structure: its functions and plain attributes
a tensor of the device              TensorLook: shape, dtype, gradient and device; its data is an operand.
                                    Inside one of the above it is an Identity, because the program reads that tensor
anything else                       Identity: only the same object will do
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch

from ...programs.site import is_user_file
from .host_number import HostNumber


class Missing:
    """The type of `MISSING`: there is no such attribute or item."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Final = Missing()

_MAX_DEPTH = 4  # levels of a value that its token distinguishes

# Compared by value: code cannot distinguish two that are equal.
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
PLAIN += (types.CodeType, enum.Enum, np.generic, np.dtype, type(NotImplemented), Missing)
CONTAINERS = (list, dict, set, frozenset, tuple, deque, types.MappingProxyType)
_SET_BY_PYTHON: tuple[str, ...] = (
    "__module__",
    "__doc__",
    "__dict__",
    "__weakref__",
    "__firstlineno__",
    "__qualname__",
)
_SET_BY_PYTHON += (
    "__dataclass_fields__",
    "__dataclass_params__",
    "__annotations__",
    "__abstractmethods__",
)
_SET_BY_PYTHON += (
    "__static_attributes__",
    "__parameters__",
    "__orig_bases__",
    "__annotate_func__",
)


class Value(NamedTuple):
    """The token of a value that is compared by value."""

    type: type
    value: object


class AnyNumber(NamedTuple):
    """The token of a number that varies (`host_number.py`)."""

    type: type


class Identity(NamedTuple):
    """The token of an object that is compared by identity: the name of its type, and its id."""

    kind: str
    number: int


class TensorLook(NamedTuple):
    """The properties of an input tensor that a program depends on."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: str


class Code(NamedTuple):
    """The token of a user function: all that determines what it does, except what its code reads when it runs."""

    code: types.CodeType
    parts: tuple[Token, ...]


class Structure(NamedTuple):
    """The token of a user class, a container or a partial: tokens of its parts, with their names."""

    kind: str
    parts: tuple[object, ...]


class Phrase(NamedTuple):
    """A change that is described in words instead of by two tokens, such as "has different contents"."""

    text: str


Token: TypeAlias = Value | AnyNumber | Identity | TensorLook | Code | Structure


def look(tensor: torch.Tensor) -> TensorLook:
    """The properties of an input tensor that a program depends on."""
    return TensorLook(tuple(tensor.shape), tensor.dtype, tensor.requires_grad, tensor.device.type)


def is_plain(value: object) -> bool:
    """Whether a value is compared by value, and holds nothing that could change."""
    if type(value) is tuple or type(value) is frozenset:
        return all(map(is_plain, value))
    if type(value) is HostNumber:
        return True
    if not isinstance(value, PLAIN):
        return False
    # A string or number of a user class may have attributes.
    return (
        type(value) in PLAIN or not getattr(value, "__dict__", None) or isinstance(value, enum.Enum)
    )


def is_plain_container(value: object) -> bool:
    """Whether a mutable container, or a tuple, holds only plain values and containers of this kind."""
    if type(value) is dict or type(value) is OrderedDict:
        return all(is_plain(v) or is_plain_container(v) for v in value.values())
    if isinstance(value, list | set | deque | tuple) and type(value) in (list, set, deque, tuple):
        return all(is_plain(v) or is_plain_container(v) for v in value)
    return False


def items_of(mapping: Mapping[Any, object]) -> Iterable[tuple[Any, object]]:
    """The items that a dictionary stores. A method that a subclass overrides does not run: it may do anything."""
    if isinstance(mapping, OrderedDict):  # its order is not that of the dictionary
        return OrderedDict.items(mapping)
    return dict.items(mapping) if isinstance(mapping, dict) else mapping.items()


def token(value: object, depth: int = _MAX_DEPTH) -> Token:
    """What a guard expects in place of this value. Equal tokens guarantee the same program."""
    if type(value) is HostNumber:
        return AnyNumber(type(value.value))
    if isinstance(value, float | complex | slice | range | np.generic):
        return Value(type(value), repr(value))  # by its digits: nan is nan, and 0.0 is not -0.0
    if isinstance(value, PLAIN):
        return Value(type(value), value)
    if isinstance(value, torch.Tensor):
        is_operand = depth == _MAX_DEPTH and value.device.type == "jax"
        return look(value) if is_operand else Identity("tensor", id(value))
    if depth:
        if isinstance(value, types.FunctionType) and is_user_file(value.__code__.co_filename):
            return _function(value, depth - 1)
        if isinstance(value, type) and is_user_class(value):
            return _class(value, depth - 1)
        if isinstance(value, functools.partial):
            inner = (value.func, *value.args, *value.keywords.items())
            return Structure("partial", tuple(token(v, depth - 1) for v in inner))
        if isinstance(value, list | tuple | deque) and type(value) in (list, tuple, deque):
            return Structure(type(value).__name__, tuple(token(v, depth - 1) for v in value))
        if isinstance(value, dict):
            items = tuple((token(k, 1), token(v, depth - 1)) for k, v in items_of(value))
            return Structure(type(value).__name__, items)
        if isinstance(value, set | frozenset):
            return Value(type(value), frozenset(token(v, depth - 1) for v in value))
    return Identity(type(value).__name__, id(value))


def _function(function: types.FunctionType, depth: int) -> Code:
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    parts += vars(function).items()
    tokens = [token(part, depth) for part in parts]
    # A function with other globals or another closure is a different one: its variables may change independently.
    tokens.append(Identity("globals", id(function.__globals__)))
    tokens += [Identity("cell", id(cell)) for cell in function.__closure__ or ()]
    return Code(function.__code__, tuple(tokens))


def _class(cls: type, depth: int) -> Structure:
    parts: list[object] = [
        cls.__module__,
        cls.__qualname__,
        Identity("metaclass", id(type(cls))),
    ]
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


def class_attributes(cls: type) -> Iterator[tuple[str, object]]:
    """(name, value) of the plain attributes and methods of a class; methods and properties as their functions."""
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
    return [
        name for name in vars(cls) if name not in _SET_BY_PYTHON and not name.startswith("_abc_")
    ]


def is_user_class(cls: type) -> bool:
    """Whether a class is user code: defined in a notebook, or in a file outside installed libraries."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ in ("builtins", "__main__") or module is None:
        return cls.__module__ != "builtins"
    file = vars(module).get("__file__")  # no `__getattr__` of the user's runs
    return cls.__module__ not in sys.builtin_module_names and (file is None or is_user_file(file))
