"""Random bits for eager programs, made by programs of a few fixed sizes.

A program that contains threefry takes twice as long to compile as one without it, and a model has dozens of shapes. So
an eager program whose lowering draws one row of bits takes that row as operands: blocks of 2**8, 2**12, ... bits, which
are made from the random key and from the index of each block's first element. Such a program only joins the blocks. The
bits are those that a captured program computes from the key (`lowerings/draws.py`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from ..lowerings.draws import MOST_COUNTED, Draws, counted_bits
from ..programs.compiling import building, finish
from ..programs.rng import key_aval
from ..storage.transfer import put
from .executable import Run, build_lock

_SIZES = (1 << 24, 1 << 20, 1 << 16, 1 << 12, 1 << 8)


class Noise:
    """A row of random bits, as blocks.

    Args:
        count: how many numbers the row has.
        width: their bits, 32 or 64.
        sharding: where they are.

    Attributes:
        avals: those of the blocks.
    """

    def __init__(self, count: int, width: int, sharding: Sharding):
        self.count, self.width, self.sharding = count, width, sharding
        self._sizes = block_sizes(count)
        dtype = np.dtype(f"uint{width}")
        self.avals = [jax.ShapeDtypeStruct((n,), dtype, sharding=sharding) for n in self._sizes]

    def blocks(self, key: jax.Array) -> list[jax.Array]:
        """The row's blocks for a random key."""
        blocks: list[jax.Array] = []
        start = 0
        for size in self._sizes:
            make = _block_program(size, self.width, self.sharding)
            blocks += make(key, _start(start, self.sharding))
            start += size
        return blocks

    def draws(self, blocks: Sequence[jax.Array | np.ndarray]) -> Draws:
        """Draws that take their bits from the blocks."""
        return Draws(lambda count, width: jnp.concatenate(blocks)[: self.count], _no_key)


def noise_of(run: Callable[[Draws], object], sharding: Sharding) -> Noise | None:
    """The row of bits that a function draws; None if it needs its key, because it draws otherwise than once.

    Args:
        run: calls the lowering with draws and abstract arrays.
    """
    if not isinstance(sharding, SingleDeviceSharding):
        return None
    rows: list[tuple[int, int]] = []
    uses_key = False

    def bits(count: int, width: int) -> jax.Array:
        rows.append((count, width))
        return jnp.zeros(count, f"uint{width}")

    def key() -> jax.Array:
        nonlocal uses_key
        uses_key = True
        return jnp.zeros(2, np.uint64)

    run(Draws(bits, key))
    if uses_key or len(rows) != 1 or not 0 < rows[0][0] <= MOST_COUNTED:
        return None
    return Noise(*rows[0], sharding)


def block_sizes(count: int) -> list[int]:
    """The sizes of the blocks that together have `count` elements or slightly more, the largest first."""
    sizes = []
    for size in _SIZES:
        whole, rest = divmod(count, size)
        # One block that is three quarters full is cheaper than twelve or more of the next size.
        if rest * 4 > size * 3 or (rest and size == _SIZES[-1]):
            whole, rest = whole + 1, 0
        sizes += [size] * whole
        count = rest
    return sizes


def _no_key() -> jax.Array:
    raise AssertionError("a program that takes blocks of random bits has no key")


@functools.lru_cache(4096)
def _start(start: int, sharding: Sharding) -> jax.Array:
    return put(np.array(start, np.uint32), sharding)[0]


@functools.cache
def _block_program(size: int, width: int, sharding: Sharding) -> Run:
    """The program that makes a block from a random key and the index of the block's first element."""

    def random_bits(key: jax.Array, start: jax.Array) -> tuple[jax.Array]:
        return (counted_bits(key, size, width, start),)

    started = time.perf_counter()
    avals = [key_aval(sharding), jax.ShapeDtypeStruct((), np.uint32, sharding=sharding)]
    name = "random bits"
    with build_lock:
        with building(name), jax.enable_x64(True):
            traced = jax.jit(random_bits).trace(*avals)
        return finish(traced, name, time.perf_counter() - started, avals)[0]
