"""Random numbers for lowerings: functions of a key and of the index of each element in row-major order.

A key (`programs/rng.py`) is a seed and the number of draws since it was set. The bits of element `i` are the hash
threefry of that number and of `i`, under the seed. The bits, the uniform and the normal numbers of the first draw are
those of `jax.random` for the key `jax.random.key(seed)`.

The bits do not depend on the shape. This allows two things:

- Bits are drawn as one row and reshaped. XLA's CPU backend takes 1.2 s to compile JAX's threefry over four dimensions,
  because it computes the index of each element by divisions.
- An eager program may take bits that programs of a few fixed sizes made (`dispatch/noise.py`), so that no program with
  threefry is compiled for a new shape. A captured program computes the same numbers from the key.

Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011); https://docs.jax.dev/en/latest/jax.random.html.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from .promote import kind_of
from .types import Array

# Gives a row of random bits, uint32 or uint64: takes how many, and their width.
BitSource = Callable[[int, int], Array]

# More elements than this need more than the lower half of threefry's counter.
MOST_COUNTED = 1 << 32
# Spreads the upper half of an index over the bits of a seed: 2**32 divided by the golden ratio, made odd.
_SPREAD = np.uint32(0x9E3779B9)


class Draws:
    """The random numbers of one call.

    Args:
        bits: gives the random bits.
        key: gives the key, uint64[2].
    """

    def __init__(self, bits: BitSource, key: Callable[[], Array]):
        self._bits = bits
        self._key = key

    @property
    def jax_key(self) -> Array:
        """A JAX key, for samplers of `jax.random` that draw until they accept: the bits of the last element."""
        seed, draw = _seed_and_draw(self._key())
        data = jnp.stack(_threefry(seed, draw, jnp.uint32(MOST_COUNTED - 1)))
        return jax.random.wrap_key_data(data, impl="threefry2x32")

    def bits(self, shape: Sequence[int], width: int) -> Array:
        """Random bits as unsigned integers of 8, 16, 32 or 64 bits."""
        row = self._bits(math.prod(shape), max(width, 32))
        return row.astype(f"uint{width}").reshape(shape)

    def uniform(self, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Numbers in [0, 1), for complex dtypes in both parts.

        They are drawn in `dtype` itself, because rounding from a wider dtype could give 1.
        """
        if kind_of(dtype) == "c":
            real = np.zeros((), dtype).real.dtype
            return jax.lax.complex(*self.uniform((2, *shape), real))
        # Random bits in the mantissa of a number in [1, 2).
        info = jnp.finfo(dtype)
        width = 8 if info.nmant < 8 else info.bits
        unsigned = np.dtype(f"uint{info.bits}")
        bits = self.bits(shape, width).astype(unsigned) >> unsigned.type(width - info.nmant)
        one = np.ones((), dtype).view(unsigned)
        return jax.lax.bitcast_convert_type(bits | one, dtype) - np.ones((), dtype)

    def positive(self, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Numbers in (0, 1]: they have a logarithm."""
        return 1 - self.uniform(shape, dtype)

    def normal(self, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Numbers of the standard normal distribution, by the inverse of its distribution function.

        Complex numbers have variance 1: each part has 1/2.
        """
        root = math.sqrt(2)
        if kind_of(dtype) == "c":
            parts = self.normal((2, *shape), np.zeros((), dtype).real.dtype)
            return jax.lax.complex(*(parts / parts.dtype.type(root)))
        lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype), dtype=dtype)
        points = self.uniform(shape, dtype) * (1 - lowest) + lowest
        return jnp.multiply(np.array(root, dtype), jax.lax.erf_inv(jnp.maximum(lowest, points)))

    def gumbel(self, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Numbers of the standard Gumbel distribution."""
        tiny = jnp.finfo(dtype).tiny
        points = jax.lax.max(self.uniform(shape, dtype), jnp.full(shape, tiny, dtype))
        return -jax.lax.log(-jax.lax.log(points))


def draws_from_key(key: Array) -> Draws:
    """Draws that compute their bits from a key, uint64[2]."""
    return Draws(lambda count, width: counted_bits(key, count, width), lambda: key)


def counted_bits(key: Array, count: int, width: int, start: Array | None = None) -> Array:
    """The bits of `count` elements, as a row.

    Args:
        key: uint64[2].
        width: 32 or 64.
        start: the index of the first element, uint32; by default 0. Then the last index must be less than 2**32.
    """
    (first, second), draw = _seed_and_draw(key)
    if count > MOST_COUNTED:
        # The counter has no place for the upper half of the index: each 2**32 elements have a seed of their own.
        index = jax.lax.iota(np.uint64, count)
        low, high = index.astype(np.uint32), (index >> np.uint64(32)).astype(np.uint32)
        second = second + high * _SPREAD
    else:
        low = jax.lax.iota(np.uint32, count)
    if start is not None:
        low = low + start
    first, second = _threefry((first, second), draw, low)
    if width == 32:
        return first ^ second
    return first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64)


def _seed_and_draw(key: Array) -> tuple[tuple[Array, Array], Array]:
    """The two words of the seed, and the lower half of the number of draws. The upper half changes the seed."""
    (high, upper), (low, lower) = (key >> np.uint64(32)).astype(np.uint32), key.astype(np.uint32)
    return (high + upper, low), lower


# By how many bits each round rotates. Groups of four rounds alternate between the two rows.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def _threefry(key: tuple[Array, Array], high: Array, low: Array) -> tuple[Array, Array]:
    """The hash threefry2x32 with 20 rounds, of a key and pairs of words.

    JAX's own primitive computes the same with a loop on the CPU. Written out, XLA fuses it with what uses the bits: it
    runs in a quarter of the time. JAX also traces that loop only once in a process, so that all later programs would
    have the source lines of the first.
    """
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = high + keys[0], low + keys[1]
    for group in range(5):
        for bits in _ROTATIONS[group % 2]:
            x = x + y
            y = x ^ (y << np.uint32(bits) | y >> np.uint32(32 - bits))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y
