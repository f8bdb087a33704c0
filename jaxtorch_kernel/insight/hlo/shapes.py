"""The shapes of values in an XLA module: dtype, sizes, and how the elements lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .wire import fields, numbers, signed

# xla_data.proto: PrimitiveType -> name, bits of an element.
_TYPES = {
    1: ("pred", 8), 30: ("s1", 1), 26: ("s2", 2), 21: ("s4", 4), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32),
    5: ("s64", 64), 31: ("u1", 1), 27: ("u2", 2), 22: ("u4", 4), 6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32),
    9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8),
    28: ("f8e4m3", 8), 20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 15: ("c64", 64), 18: ("c128", 128),
    14: ("opaque", 0), 17: ("token", 0),
}  # fmt: skip
_TUPLE, _BUFFER = 13, 34


class Layout(NamedTuple):
    """The layout of an array in memory.

    Attributes:
        order: its dimensions, the one whose elements are adjacent first.
        tiles: the sizes of the tiles that it is stored in, the outermost first. It is padded to whole tiles.
        space: the number of the memory; 0 is the device's main memory.
    """

    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = 0


_PLAIN = Layout()


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a result: an array, or a tuple of shapes.

    Attributes:
        text: as XLA writes it, without the layout.
        dtype: the element type of an array; "tuple" for a tuple.
        dimensions: the sizes of an array; empty for a tuple.
        parts: the shapes in a tuple; empty for an array.
        bytes: the total, without padding.
        layout: of an array.
    """

    text: str
    dtype: str
    dimensions: tuple[int, ...]
    parts: tuple[Shape, ...]
    bytes: int
    layout: Layout = _PLAIN

    @property
    def elements(self) -> int:
        """The number of elements, over all parts."""
        if self.parts:
            return sum(part.elements for part in self.parts)
        count = 1
        for size in self.dimensions:
            count *= size
        return count


def read_shape(data: bytes) -> Shape:
    """A shape from a serialized `ShapeProto`."""
    kind = 0
    dimensions: list[int] = []
    parts: list[Shape] = []
    layout = _PLAIN
    for key, value in fields(data):
        if key == 2:
            kind = value
        elif key == 5:
            layout = _layout(value)
        elif key == 3:
            dimensions += [signed(n) for n in numbers(value)]
        elif key == 4:
            parts.append(read_shape(value))
    if kind == _BUFFER and parts:
        return parts[0]
    if kind == _TUPLE:
        text = f"({', '.join(part.text for part in parts)})"
        return Shape(text, "tuple", (), tuple(parts), sum(part.bytes for part in parts))
    dtype, bits = _TYPES.get(kind, (f"type{kind}", 0))
    count = 1
    for size in dimensions:
        count *= size
    text = f"{dtype}[{','.join(map(str, dimensions))}]"
    return Shape(text, dtype, tuple(dimensions), (), -(-count * bits // 8), layout)


def _layout(data: bytes) -> Layout:
    order: list[int] = []
    tiles: list[tuple[int, ...]] = []
    space = 0
    for key, value in fields(data):
        if key == 1:
            order += numbers(value)
        elif key == 6:
            tiles.append(tuple(signed(n) for k, v in fields(value) if k == 1 for n in numbers(v)))
        elif key == 8:
            space = value
    return Layout(tuple(order), tuple(tiles), space)
