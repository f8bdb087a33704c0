"""Random numbers: one key per placement, seeded by `torch.manual_seed`, advanced by every operator that draws.

A key is a seed and an offset, uint64[2]. The offset is the number of draws since the seed was set, as in `torch.cuda`.
`lowerings/draws.py` makes random bits from a key. No draw hashes the key for the next one: `jax.random.split` would
add a loop to a program for each draw, and JAX traces that loop once in a process, with the source lines of the first
program.

The key is an input and an output of each random program, so a captured program draws new numbers at each call. In a
trace, setting a seed or a state takes effect at each run, as drawing does: the key is an ordinary tracer there.

A random program may fail late (out of memory), and then all of its outputs are lost. So in eager mode a separate
program computes the next key, and after a captured program has failed, the key is reset to the last valid one.

A generator of the device has its own key (`operators/generator.py`). From a CPU `torch.Generator` passed as
`generator=`, a new key is drawn for each call: the same generator state gives the same numbers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from ..base import torch_private as private
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of, spec_of, wrap

if TYPE_CHECKING:
    import jax
    from jax.sharding import Sharding

    from .tracing import Trace

# `torch.manual_seed` imports this module, perhaps before jax: functions that need jax import it themselves.


class RandomKey(Buffer):
    """A key (uint64[2]) for one placement, and the seed it came from.

    It is a Buffer, so that programs and traces read and write it like the data of a tensor.
    """

    __slots__ = ("_good", "initial_seed", "lock", "where")

    def __init__(self, seed: int, where: Sharding):
        self.where = where
        self.lock = threading.RLock()  # held from reading the key until the next one is written
        self._good: jax.Array | None = None  # the latest key that is known to be valid
        key = _key_of(seed)
        self.initial_seed = int(key[0])
        self._put(key)

    def seed(self, seed: int) -> None:
        """Restart from a 64-bit seed."""
        key = _key_of(seed)
        self.initial_seed = int(key[0])
        self._set_key(key)

    def at(self, where: Sharding) -> RandomKey:
        """This key, moved to the placement of the program that will use it."""
        if self.where != where and not _is_traced(self.array):
            with self.lock:
                self.where = where
                self._put(np.asarray(self.array))
        return self

    def state(self) -> torch.Tensor:
        """Seed and offset as a ByteTensor of 16 bytes, laid out as in `torch.cuda`.

        It is a CPU tensor, but a tensor of the device inside captured code, where the key has no value yet.
        """
        trace = _trace()
        if trace is None:
            from ..storage.transfer import host_values

            with self.locked():
                host = host_values(self.array).view(np.uint8).copy()
            return torch.from_numpy(host)
        import jax
        import jax.numpy as jnp

        key = trace.read(self)
        # Not in one step from 64 bits, which a TPU cannot do.
        words = jnp.stack([key, key >> np.uint64(32)], axis=1).astype(np.uint32)
        data = jax.lax.bitcast_convert_type(words, np.uint8).reshape(_STATE_BYTES)
        spec = spec_of(np.dtype(np.uint8), (_STATE_BYTES,), self.where)
        state = wrap(data, spec, (_STATE_BYTES,), torch.uint8)
        trace.add_created(buffer_of(state))
        return state

    def set_state(self, state: torch.Tensor) -> None:
        """Continue from a state that `state` returned.

        Raises:
            RuntimeError: the state is invalid.
        """
        if state.dtype != torch.uint8 or state.numel() != _STATE_BYTES:
            raise RuntimeError(
                "a jax RNG state must be a ByteTensor of 16 bytes from torch.jax.get_rng_state() or a generator's "
                f"get_state(), not {state.dtype} with {state.numel()} elements"
            )
        trace = _trace()
        if trace is None or state.device.type == "cpu":
            host = state.cpu().numpy().copy().view(np.uint64)
            self.initial_seed = int(host[0])
            self._set_key(host)
            return
        import jax

        data = trace.read(buffer_of(state.clone())).reshape(2, 2, 4)
        words = jax.lax.bitcast_convert_type(data, np.uint32).astype(np.uint64)
        self._set_key(words[:, 0] | words[:, 1] << np.uint64(32))

    def _set_key(self, data: np.ndarray | jax.Array) -> None:
        trace = _trace()
        if trace is None:
            self._put(np.asarray(data))
            return
        if isinstance(data, np.ndarray):
            from ..storage.transfer import put
            from .tracing import tracer_of

            data = tracer_of(put(data, self.where)[0])
        trace.overwrite(self, data)

    def _put(self, data: np.ndarray) -> None:
        from ..storage.transfer import put

        self.write(*put(data, self.where))
        self._good = self.array

    @contextmanager
    def drawing(self) -> Iterator[jax.Array]:
        """Lend the key to one call, while no other thread draws. The next key does not depend on that call."""
        with self.locked():
            key = self.array
            following = _following(self.where)(key)
            self.array = following[0]
            if key is self._good:
                self._good = self.array
            try:
                yield key
            except Exception:  # nothing was drawn; after Ctrl-C this is unknown
                self.array = key
                raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads from drawing; a key that its program failed to compute is first replaced."""
        from ..storage.transfer import has_failed, is_traced

        with self.lock:
            # A key other than the last valid one comes from a captured program, which may have failed.
            if self.array is not self._good and not is_traced(self.array):
                if self._good is not None and has_failed(self.array):
                    self.array = self._good
                elif self.array.is_ready():  # type: ignore[attr-defined]  # of `ArrayImpl`
                    self._good = self.array
            yield


def advanced(key: jax.Array) -> jax.Array:
    """The key after one draw."""
    return key + np.array([0, 1], np.uint64)


def key_aval(where: Sharding | None = None) -> jax.ShapeDtypeStruct:
    """The aval of a key."""
    import jax

    return jax.ShapeDtypeStruct((2,), np.uint64, sharding=where)


def key_of_jax(data: jax.Array) -> jax.Array:
    """The key whose seed is that of a JAX key, given as raw threefry data, uint32[2]."""
    import jax.numpy as jnp

    high, low = data.astype(np.uint64)
    return jnp.stack([high << np.uint64(32) | low, np.uint64(0)])


def next_key(key: jax.Array, where: Sharding) -> jax.Array:
    """The key after one draw, by a program of its own."""
    return _following(where)(key)[0]


@functools.cache
def _following(where: Sharding) -> Callable[[jax.Array], Sequence[jax.Array]]:
    """A program that computes the next key from a key, as every random program does."""
    import jax

    from ..base.jax_private import fast_call

    def next_key(key: jax.Array) -> tuple[jax.Array]:
        return (advanced(key),)

    with jax.enable_x64(True), placement.without_context_mesh():
        return fast_call(jax.jit(next_key).lower(key_aval(where)).compile())


class GeneratorKey(RandomKey):
    """A key that is drawn from a CPU generator before each run of a program.

    Each draw in captured code has a key of its own, as each eager draw does.
    """

    __slots__ = ("generator",)

    def __init__(self, generator: torch.Generator, where: Sharding):
        super().__init__(0, where)
        self.generator = generator

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Draw the key, and keep other threads from drawing while a program uses it."""
        with self.lock:
            self.seed(_seed_from(self.generator))
            yield


_STATE_BYTES = 16
_keys: dict[Sharding, RandomKey] = {}
_default_seed = 0


class DeviceGenerator(Protocol):
    """A `torch.Generator` of the device (`operators/generator.py`)."""

    key: RandomKey


# The generators of the device, by the identity that a kernel receives (`torch_private.identity`).
generators: weakref.WeakValueDictionary[int, DeviceGenerator] = weakref.WeakValueDictionary()


def _key_of(seed: int) -> np.ndarray:
    """The key of a seed, which may be negative as in torch."""
    return np.array([seed & (1 << 64) - 1, 0], np.uint64)


def _seed_from(generator: torch.Generator) -> int:
    high, low = (
        int(
            torch.empty((), dtype=torch.int64, device="cpu").random_(
                0, 1 << 32, generator=generator
            )
        )
        for _ in range(2)
    )
    return high << 32 | low


def _trace() -> Trace | None:
    """This thread's open trace. Before jax is imported there is none."""
    if "jax" not in sys.modules:
        return None
    from . import tracing

    return tracing.current()


def is_tracing() -> bool:
    """Whether this thread is tracing."""
    return _trace() is not None


def _is_traced(array: object) -> bool:
    import jax

    return isinstance(array, jax.core.Tracer)


def default_key(where: Sharding | None = None) -> RandomKey:
    """The key of a placement, by default that of the current device."""
    where = placement.current() if where is None else where
    key = _keys.get(where)
    if key is None:
        # `setdefault`, because another thread may have added one in the meantime.
        key = _keys.setdefault(where, RandomKey(_default_seed, where))
    return key


def key_for(generator: torch.Generator | None, where: Sharding) -> RandomKey:
    """The key for a random operator: that of its placement, or of the generator that the user passed."""
    if generator is None:
        return default_key(where)
    of_device = generators.get(private.identity(generator))
    if of_device is not None:
        return of_device.key.at(where)
    trace = _trace()
    if trace is None:
        return RandomKey(_seed_from(generator), where)
    drawn = GeneratorKey(generator, where)
    trace.root.retained.append(drawn)
    return drawn


def seed_all_keys(seed: int) -> None:
    """Seed the key of every device."""
    global _default_seed
    if _trace() is not None:
        # It takes effect at each run of the captured program, which has one placement.
        default_key().seed(seed)
        return
    _default_seed = seed
    for key in _keys.values():
        key.seed(seed)


def fresh_seed() -> int:
    """A seed from the operating system.

    Raises:
        Untraceable: in captured code, because every run would have the same seed.
    """
    if _trace() is not None:
        from .untraceable import Untraceable

        raise Untraceable(
            "a seed from the operating system would be the same in every run of the program"
        )
    return int.from_bytes(os.urandom(8), "little")
