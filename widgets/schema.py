"""Writes TypeScript types for payloads: the dataclasses that views send to the page.

A payload is declared once, as a dataclass. `plain` (`protocol.py`) sends its fields as JSON. `scripts/view_types.py`
writes the TypeScript types of all payloads into `js/src/generated.ts`. So both sides always agree on the fields.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

# The metadata of a field that stays in the kernel, such as the static form of a chart.
KERNEL_ONLY = {"sent": False}

_NAMES = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


@cache
def sent_fields(payload: type) -> tuple[Field[object], ...]:
    """The fields of a dataclass that go to the page."""
    return tuple(f for f in fields(payload) if f.metadata.get("sent", True))


def typescript(roots: Sequence[type]) -> str:
    """TypeScript interfaces for these dataclasses, and for every dataclass and named tuple that they refer to.

    Example:
        >>> from dataclasses import dataclass
        >>> from jaxtorch.widgets.schema import typescript
        >>> @dataclass
        ... class Point:
        ...     x: float
        ...     names: list[str | None]
        >>> print(typescript([Point]))
        export interface Point {
          x: number;
          names: (string | null)[];
        }
        <BLANKLINE>
    """
    written: dict[str, tuple[type, str]] = {}
    waiting = list(roots)
    while waiting:
        payload = waiting.pop(0)
        if payload.__name__ not in written:
            text, used = _declaration(payload)
            written[payload.__name__] = payload, text
            waiting += used
        elif written[payload.__name__][0] is not payload:
            raise TypeError(f"two payloads are named {payload.__name__}")
    return "\n".join(text for _, text in written.values())


def _declaration(payload: type) -> tuple[str, list[type]]:
    """The TypeScript declaration of a payload, and the payloads that it refers to."""
    hints = get_type_hints(payload, include_extras=True)
    used: list[type] = []
    if _is_named_tuple(payload):
        parts = ", ".join(f"{name}: {_type(hints[name], used)}" for name in payload._fields)
        return f"export type {payload.__name__} = [{parts}];\n", used
    if not is_dataclass(payload):
        raise TypeError(f"{payload} is neither a dataclass nor a named tuple")
    lines = [f"  {f.name}: {_type(hints[f.name], used)};\n" for f in sent_fields(payload)]
    return f"export interface {payload.__name__} {{\n{''.join(lines)}}}\n", used


def _type(hint: object, used: list[type]) -> str:
    """An annotation as a TypeScript type. Adds its dataclasses and named tuples to `used`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], used)
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(_type(part, used) for part in arguments))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(_type(part, used) for part in arguments)}]"
    if origin is dict or origin is Mapping:
        return f"Record<string, {_type(arguments[1], used)}>"
    if origin in (list, tuple, Sequence):
        inner = _type(arguments[0], used)
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    if hint is object:
        return "Json"
    if isinstance(hint, TypeVar):
        return _type(hint.__bound__, used)
    if origin is not None:  # a generic dataclass
        return _type(origin, used)
    if not isinstance(hint, type):
        raise TypeError(f"a payload cannot have a field of type {hint}")
    if hint in _NAMES:
        return _NAMES[hint]
    used.append(hint)
    return hint.__name__


class _NamedTuple(tuple[object, ...]):
    _fields: tuple[str, ...]


def _is_named_tuple(payload: type) -> TypeGuard[type[_NamedTuple]]:
    return issubclass(payload, tuple) and hasattr(payload, "_fields")
