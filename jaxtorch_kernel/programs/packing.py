"""Packs small arrays that pass from one program to the next: arrays of the same dtype are concatenated.

Each output of a program costs the host about 2 µs (its buffer, its Python object, an operand of the next program),
regardless of its size; a hundred more bytes in an existing output are free. A deep model's forward program has
hundreds of small residuals. Copying is cheap up to some size, and so is slicing them out again inside the next
program, where XLA fuses the slice with its consumer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# The largest array that is packed, in bytes: copying it takes about as long as passing it separately.
_LARGEST = 16 * 1024
# The most arrays in one pack. The more slices of one array a program takes, the longer XLA's CPU compiler needs for
# each (24 decoder layers: 3.6 s of compilation without packs, 4.4 s in packs of 16, 12 s in packs of 256).
_MOST = 16


class Packing:
    """How a list of arrays is packed: which ones are concatenated, and where each one is afterwards.

    Args:
        avals: one for each array. Large arrays, the only array of a dtype, and random keys are not packed.
        largest: the size in bytes of the largest array that is packed; a negative number packs none.

    Example:
        >>> import jax.numpy as jnp
        >>> packing = Packing([jnp.ones(2), jnp.zeros((1, 3))])
        >>> (packed,) = packing.pack([jnp.ones(2), jnp.zeros((1, 3))])
        >>> packed.shape, [a.shape for a in packing.unpack([packed])]
        ((5,), [(2,), (1, 3)])
    """

    def __init__(self, avals: Sequence[jax.Array | jax.ShapeDtypeStruct], largest: int = _LARGEST):
        self._shapes = [a.shape for a in avals]
        small: dict[np.dtype, list[int]] = {}
        for i, aval in enumerate(avals):
            if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
                continue
            if math.prod(aval.shape) * aval.dtype.itemsize <= largest:
                small.setdefault(aval.dtype, []).append(i)
        packs = [of[i : i + _MOST] for of in small.values() for i in range(0, len(of), _MOST)]
        self._packs = [pack for pack in packs if len(pack) > 1]
        packed = {i for pack in self._packs for i in pack}
        self._unpacked = [i for i in range(len(avals)) if i not in packed]

    def pack(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The packed list, inside or outside a trace."""
        packed = [jnp.concatenate([arrays[i].ravel() for i in pack]) for pack in self._packs]
        return [*(arrays[i] for i in self._unpacked), *packed]

    def unpack(self, packed: Sequence[jax.Array]) -> list[jax.Array]:
        """The original list."""
        arrays: dict[int, jax.Array] = dict(zip(self._unpacked, packed, strict=False))
        for pack, concatenated in zip(self._packs, packed[len(self._unpacked) :], strict=True):
            sizes = [math.prod(self._shapes[i]) for i in pack]
            end = 0
            for i, size in zip(pack, sizes, strict=True):
                part = jax.lax.slice(concatenated, (end,), (end + size,))
                arrays[i] = part.reshape(self._shapes[i])
                end += size
        return [arrays[i] for i in range(len(self._shapes))]
