"""The wire format of protocol buffers, as much as reading needs: a message is pairs of a field's number and a value.

XLA's Python bindings show an instruction's name, opcode and operands, and no shape, metadata or stack frame, which are
in the serialized module alone. Its schema (`hlo.proto`, `xla_data.proto`) keeps the numbers of its fields, so that a
reader of the format and a dozen numbers do what the package `protobuf` and generated classes would.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, in order: an int for a number, bytes for a string, a message or a packed list.

    Numbers of fixed width stay bytes. An unset field is not there.

    Raises:
        ValueError: it is no message, or it is cut off.

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
                raise ValueError(f"no message: a field of kind {kind} at byte {at}")
            if at > end:
                break
            yield tag >> 3, value
    except IndexError:
        at = end + 1
    if at > end:
        raise ValueError(f"the message is cut off: {end} bytes, and more are announced")


def numbers(data: bytes | int) -> list[int]:
    """A repeated number: packed, or a single one as it stands.

    Example:
        >>> from jaxtorch.insight.hlo.wire import numbers
        >>> numbers(bytes([3, 150, 1])), numbers(7)
        ([3, 150], [7])
    """
    if isinstance(data, int):
        return [data]
    found, at = [], 0
    while at < len(data):
        value = data[at]
        at += 1
        if value >= 128:
            value, at = _number(data, at - 1)
        found.append(value)
    return found


def signed(value: int) -> int:
    """A negative number, which the format writes as one of 64 bits.

    Example:
        >>> from jaxtorch.insight.hlo.wire import signed
        >>> signed(2**64 - 1), signed(5)
        (-1, 5)
    """
    return value - 2**64 if value >= 2**63 else value


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number of several bytes, seven bits in each, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
