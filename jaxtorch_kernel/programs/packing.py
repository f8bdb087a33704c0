"""Packing small arrays that pass between two programs: those of one dtype are concatenated.

Each output of a program costs the host about 2 µs (its buffer, its Python object, an operand of the next program),
regardless of its size; a hundred more bytes in an existing output are free. A deep model's forward program has
hundreds of small residuals. Copying is cheap up to some size, and so is slicing them out again inside the next
program, where XLA fuses the slice with its consumer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

# Bytes of an array that is packed: copying it takes about as long as handing it over.
_LARGEST = 16 * 1024
# Arrays in one pack: XLA's CPU compiler takes the longer for each cut the more of them read one array (24 decoder
# layers: 3.6 s of compilation without packs, 4.4 s in packs of 16, 12 s in packs of 256).
_MOST = 16


class Packing:
    """The position of each array in the packed ones.

    Args:
        avals: of the arrays. Those that are large, alone of their dtype, or no numbers (random keys) stay as they are.
        largest: bytes of an array that is packed; negative for none.

    Example:
        >>> import jax.numpy as jnp
        >>> packing = Packing([jnp.ones(2), jnp.zeros((1, 3))])
        >>> (packed,) = packing.pack([jnp.ones(2), jnp.zeros((1, 3))])
        >>> packed.shape, [a.shape for a in packing.unpack([packed])]
        ((5,), [(2,), (1, 3)])
    """

    def __init__(self, avals: Sequence[Any], largest: int = _LARGEST):
        self._shapes = [a.shape for a in avals]
        small: dict[Any, list[int]] = {}
        for i, aval in enumerate(avals):
            if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
                continue
            if math.prod(aval.shape) * aval.dtype.itemsize <= largest:
                small.setdefault(aval.dtype, []).append(i)
        packs = [of[i : i + _MOST] for of in small.values() for i in range(0, len(of), _MOST)]
        self._packs = [pack for pack in packs if len(pack) > 1]
        packed = {i for pack in self._packs for i in pack}
        self._alone = [i for i in range(len(avals)) if i not in packed]

    def pack(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays in fewer, inside a trace or outside."""
        packed = [jnp.concatenate([arrays[i].ravel() for i in pack]) for pack in self._packs]
        return [*(arrays[i] for i in self._alone), *packed]

    def unpack(self, packed: Sequence[jax.Array]) -> list[jax.Array]:
        """The arrays again."""
        found: dict[int, jax.Array] = dict(zip(self._alone, packed, strict=False))
        for pack, array in zip(self._packs, packed[len(self._alone) :], strict=True):
            sizes = [math.prod(self._shapes[i]) for i in pack]
            end = 0
            for i, size in zip(pack, sizes, strict=True):
                part = jax.lax.slice(array, (end,), (end + size,))
                found[i] = part.reshape(self._shapes[i])
                end += size
        return [found[i] for i in range(len(self._shapes))]
