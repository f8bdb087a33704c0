"""Random numbers: one JAX key, seeded by `torch.manual_seed`, advanced by every operator that draws.

The key is an input and an output of each random program, so a captured program draws new numbers at each call. In a
trace, setting a seed or a state takes effect at each run, as drawing does: the key is an ordinary tracer there.

A random program may fail late (out of memory), and then all of its outputs are lost. So in eager mode the next key
comes from a separate program, and after a captured program has failed, the key is reset to the last good one.

A generator of the device has its own source (`operators/generator.py`). A CPU `torch.Generator` passed as `generator=`
provides a new key, and thus remains the only source of its stream: the same generator state gives the same numbers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch

from ..base import torch_private as private
from ..storage import placement
from ..storage.buffer import Buffer, buffer_of, spec_of, wrap

# `torch.manual_seed` imports this file, before jax perhaps: what needs jax is imported where it is used.


class Source(Buffer):
    """A key (raw threefry data, uint32[2]) and the seed it came from, for one placement.

    A Buffer, so that programs and traces read and write it as they do a tensor's data.
    """

    __slots__ = ("_good", "initial_seed", "lock", "where")

    def __init__(self, seed: int, where: Any):
        self.where = where
        self.lock = threading.RLock()  # from reading the key to writing the next
        self._good: Any = None  # the latest key that no program can have failed to compute
        self.initial_seed = seed & (1 << 64) - 1
        self._put(_key_of(seed))

    def seed(self, seed: int) -> None:
        """Restart from a 64-bit seed."""
        self.initial_seed = seed & (1 << 64) - 1
        self._set_key(_key_of(seed))

    def at(self, where: Any) -> Source:
        """The source itself, its key where a program needs it."""
        if self.where != where and not _is_traced(self.array):
            with self.lock:
                self.where = where
                self._put(np.asarray(self.array))
        return self

    def state(self) -> torch.Tensor:
        """Seed and key, as a ByteTensor of 16 bytes: of the CPU, inside captured code of the device, as they have no
        value yet.
        """
        seed = np.array([self.initial_seed], np.uint64).view(np.uint32)
        trace = _trace()
        if trace is None:
            from ..storage.transfer import host_values

            with self.held():
                words = np.concatenate([seed, host_values(self.array)])
            return torch.from_numpy(words.view(np.uint8).copy())
        import jax
        import jax.numpy as jnp

        traced = jnp.concatenate([jnp.asarray(seed), trace.read(self)])
        data = jax.lax.bitcast_convert_type(traced, np.uint8).reshape(_STATE_BYTES)
        spec = spec_of(np.dtype(np.uint8), (_STATE_BYTES,), self.where)
        state = wrap(data, spec, (_STATE_BYTES,), torch.uint8)
        trace.add_born(buffer_of(state))
        return state

    def set_state(self, state: torch.Tensor) -> None:
        """Go on from what `state` returned.

        Raises:
            RuntimeError: the state is invalid.
        """
        if state.dtype != torch.uint8 or state.numel() != _STATE_BYTES:
            raise RuntimeError(
                "a jax RNG state must be a ByteTensor of 16 bytes from torch.jax.get_rng_state() or a generator's "
                f"get_state(), not {state.dtype} with {state.numel()} elements"
            )
        if _trace() is None or state.device.type == "cpu":
            words = state.cpu().numpy().view(np.uint32)
            self.initial_seed = int(words[:2].copy().view(np.uint64)[0])
            self._set_key(words[2:].copy())
            return
        import jax

        trace = _trace()
        words = trace.read(buffer_of(state.clone())).reshape(-1, 4)
        self._set_key(jax.lax.bitcast_convert_type(words, np.uint32)[2:])

    def _set_key(self, data: Any) -> None:
        trace = _trace()
        if trace is None:
            self._put(data)
            return
        if not _is_traced(data):
            from ..storage.transfer import put
            from .tracing import tracer_of

            data = tracer_of(put(data, self.where)[0])
        trace.overwrite(self, data)

    def _put(self, data: np.ndarray) -> None:
        from ..storage.transfer import put

        self.write(*put(data, self.where))
        self._good = self.array

    @contextmanager
    def drawing(self) -> Iterator[Any]:
        """The key for one call, while no other thread draws. The next key does not depend on that call."""
        with self.held():
            key = self.array
            following = _following(self.where)(key)
            self.array = following[0]
            if key is self._good:
                self._good = self.array
            try:
                yield key
            except Exception:  # nothing was drawn; after Ctrl-C nobody knows
                self.array = key
                raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else draws meanwhile; the key is none that is known to have failed."""
        from ..storage.transfer import has_failed, is_traced

        with self.lock:
            if self.array is not self._good and not is_traced(self.array):  # a captured program's
                if has_failed(self.array):
                    self.array = self._good
                elif self.array.is_ready():  # type: ignore[attr-defined]  # of `ArrayImpl`
                    self._good = self.array
            yield


@functools.cache
def _following(where: Any) -> Any:
    """A program from a key to the one after it, the same that every random program computes."""
    import jax

    from ..base.jax_private import fast_call

    def next_key(key: Any) -> tuple[Any]:
        return (jax.random.key_data(jax.random.split(jax.random.wrap_key_data(key))[0]),)

    with jax.enable_x64(True):
        aval = jax.ShapeDtypeStruct((2,), np.uint32, sharding=where)
        return fast_call(jax.jit(next_key).lower(aval).compile())


class Drawn(Source):
    """A key that is drawn from a CPU generator before each run of a program.

    Each draw in the captured code has its own, as each eager draw does.
    """

    __slots__ = ("generator",)

    def __init__(self, generator: torch.Generator, where: Any):
        super().__init__(0, where)
        self.generator = generator

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold while a program draws from the key."""
        with self.lock:
            self.seed(_seed_from(self.generator))
            yield


_STATE_BYTES = 16
_sources: dict[Any, Source] = {}
# The generators of the device, each with its `source`, by what a kernel knows them by.
generators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_default_seed = 0


def _key_of(seed: int) -> np.ndarray:
    return np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)


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


def _trace() -> Any:
    """The trace that is open, if any: there is none before jax is there."""
    if "jax" not in sys.modules:
        return None
    from . import tracing

    return tracing.current()


def is_tracing() -> bool:
    """Whether this thread traces."""
    return _trace() is not None


def _is_traced(array: Any) -> bool:
    import jax

    return isinstance(array, jax.core.Tracer)


def default(where: Any = None) -> Source:
    """The source of a placement, by default of the current device."""
    where = placement.current() if where is None else where
    found = _sources.get(where)
    if found is None:
        found = _sources.setdefault(where, Source(_default_seed, where))  # threads may meet here
    return found


def source(generator: Any, where: Any) -> Source:
    """The source of a random operator's key: that of its placement, or a generator that the user passed."""
    if generator is None:
        return default(where)
    own: Any = generators.get(private.identity(generator))
    if own is not None:
        return cast(Source, own.source).at(where)
    trace = _trace()
    if trace is None:
        return Source(_seed_from(generator), where)
    drawn = Drawn(generator, where)
    trace.root.kept.append(drawn)
    return drawn


def seed_all_sources(seed: int) -> None:
    """Seed every device's source."""
    global _default_seed
    if _trace() is not None:
        # At each run of the captured program, which is of one placement.
        default().seed(seed)
        return
    _default_seed = seed
    for found in _sources.values():
        found.seed(seed)


def fresh_seed() -> int:
    """A seed from the operating system.

    Raises:
        Untraceable: inside captured code, which would have the same seed at each run.
    """
    if _trace() is not None:
        from .tracing import Untraceable

        raise Untraceable(
            "a seed from the operating system would be the same in every run of the program"
        )
    return int.from_bytes(os.urandom(8), "little")
