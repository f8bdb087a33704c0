"""A minimal reader for the protocol buffer wire format: a message is a sequence of field numbers and values.

XLA's Python bindings expose an instruction's name, opcode and operands, but not its shape, metadata or stack frame.
These are only in the serialized module. The field numbers of its schema (`hlo.proto`, `xla_data.proto`) are stable. So
this reader and a dozen field numbers replace the `protobuf` package and generated classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) for the fields of a message, in order.

    The value is an int for a varint, and bytes for a string, a message, a packed list or a fixed-width number. A
    message leaves out unset fields.

    Raises:
        ValueError: the bytes are not a message, or the message is cut off.

    Example:
        >>> from jaxtorch.insight.hlo.wire import fields
        >>> list(fields(bytes([8, 150, 1, 18, 2, 104, 105])))
        [(1, 150), (2, b'hi')]
    """
    at, end = 0, len(data)
    try:
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 128:
                tag, at = _number(data, at - 1)
            kind = tag & 7
            if kind == 2:
                size = data[at]
                at += 1
                if size >= 128:
                    size, at = _number(data, at - 1)
                stop = at + size
                value: Any = data[at:stop]
                at = stop
            elif kind == 0:
                value = data[at]
                at += 1
                if value >= 128:
                    value, at = _number(data, at - 1)
            elif kind in (1, 5):
                stop = at + (8 if kind == 1 else 4)
                value = data[at:stop]
                at = stop
            else:
                raise ValueError(f"not a protobuf message: wire type {kind} at byte {at}")
            if at > end:
                break
            yield tag >> 3, value
    except IndexError:
        at = end + 1
    if at > end:
        raise ValueError(f"the message is cut off: a field extends past its {end} bytes")


def numbers(data: bytes | int) -> list[int]:
    """The values of a repeated number field, packed or single.

    Example:
        >>> from jaxtorch.insight.hlo.wire import numbers
        >>> numbers(bytes([3, 150, 1])), numbers(7)
        ([3, 150], [7])
    """
    if isinstance(data, int):
        return [data]
    values, at = [], 0
    while at < len(data):
        value = data[at]
        at += 1
        if value >= 128:
            value, at = _number(data, at - 1)
        values.append(value)
    return values


def signed(value: int) -> int:
    """A varint as a signed 64-bit number.

    Example:
        >>> from jaxtorch.insight.hlo.wire import signed
        >>> signed(2**64 - 1), signed(5)
        (-1, 5)
    """
    return value - 2**64 if value >= 2**63 else value


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint, which has seven bits per byte. Returns its value and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
