"""How much memory an array takes on a TPU, which stores arrays in tiles.

The tile of a matrix is 8 rows by 128 columns or more: `bf16[130,2048]{1,0:T(8,128)(2,1)}` is stored as 136 x 2048. The
first tile covers the dimensions that are adjacent in memory; each is padded to a multiple of it. The tiles inside it
only order its elements, and pad nothing.
"""

from __future__ import annotations

import math

from ..hlo.module import Shape

HOST = 5  # the number of the memory of the host
_COMBINED = -(2**63)  # the size of a tile that joins a dimension with the next


def stored_dimensions(shape: Shape) -> tuple[int, ...]:
    """The sizes of an array as it is stored, in the order of its dimensions.

    Example:
        >>> from jaxtorch.insight.fit.padding import stored_dimensions
        >>> from jaxtorch.insight.hlo.module import Layout, Shape
        >>> stored_dimensions(Shape("bf16[64,130]", "bf16", (64, 130), (), 16640, Layout((1, 0), ((8, 128), (2, 1)))))
        (64, 256)
    """
    order, tiles = shape.layout.order, shape.layout.tiles
    sizes = list(shape.dimensions)
    if not tiles or _COMBINED in tiles[0]:
        return tuple(sizes)
    for dimension, tile in zip(order, reversed(tiles[0]), strict=False):
        sizes[dimension] = -(-sizes[dimension] // tile) * tile
    return tuple(sizes)


def padded_dimensions(shape: Shape) -> tuple[tuple[int, int], ...]:
    """(size, size as it is stored) of each dimension that is padded."""
    both = zip(shape.dimensions, stored_dimensions(shape), strict=True)
    return tuple((size, stored) for size, stored in both if size != stored)


def stored_bytes(shape: Shape) -> int:
    """The bytes that a value takes in memory, with padding; of a tuple, those of its parts.

    A single number takes a whole tile.

    Example:
        >>> from jaxtorch.insight.fit.padding import stored_bytes
        >>> from jaxtorch.insight.hlo.module import Layout, Shape
        >>> stored_bytes(Shape("f32[]", "f32", (), (), 4, Layout((), ((128,),))))
        512
    """
    if shape.parts:
        return sum(map(stored_bytes, shape.parts))
    if not shape.bytes or not shape.layout.tiles:
        return shape.bytes
    elements = math.prod(stored_dimensions(shape))
    if len(shape.dimensions) < len(shape.layout.tiles[0]):
        # The missing dimensions have the size 1, which is padded to that of the tile.
        elements *= math.prod(
            shape.layout.tiles[0][: len(shape.layout.tiles[0]) - len(shape.dimensions)]
        )
    return shape.bytes * elements // math.prod(shape.dimensions)


def in_space(shape: Shape, space: int = 0) -> int:
    """The bytes of a value that are in one memory; by default the main memory."""
    if shape.parts:
        return sum(in_space(part, space) for part in shape.parts)
    return stored_bytes(shape) if shape.layout.space == space else 0
