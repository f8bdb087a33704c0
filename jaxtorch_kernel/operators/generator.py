"""`torch.Generator(device="jax")`: an independent source of random numbers.

For C++ the object is one of torch's CPU generators, because C++ passes generators between operators and Python cannot
create any other kind. A kernel receives only the identity of the C++ object (`_cdata`), by which it finds its
`RandomKey` (`programs/rng.py`). The underlying CPU generator has the same seed: a CPU operator that is called with a
generator of this device draws from it, whereas torch refuses a cuda generator there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from ..base import torch_changes
from ..base import torch_private as private
from ..programs import rng, tracing
from ..storage import placement

_DEFAULT_SEED = 67280421310721  # of every torch generator that is not seeded
_lock = threading.Lock()


class JaxGenerator(private.CpuGenerator):
    """A generator of the jax device, with the methods of `torch.Generator`.

    After `manual_seed(n)` it draws the same numbers as the device does after `torch.manual_seed(n)`.

    Example:
        >>> import torch
        >>> generator = torch.Generator(device="jax").manual_seed(0)
        >>> first = torch.randn(3, generator=generator, device="jax")
        >>> again = torch.randn(3, generator=generator.manual_seed(0), device="jax")
        >>> torch.equal(first, again)
        True
    """

    def __new__(cls) -> JaxGenerator:
        generator = super().__new__(cls)
        with _lock:
            rng.generators[private.identity(generator)] = generator
        return generator

    def __init__(self) -> None:
        self.key = rng.RandomKey(_DEFAULT_SEED, placement.current())
        trace = tracing.current()
        if trace is not None:
            trace.add_created(self.key)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute in the base class
        """`jax:0`."""
        return private.DEVICE

    def manual_seed(self, seed: int) -> JaxGenerator:
        """Restart from a seed; returns the generator."""
        super().manual_seed(seed)  # raises for an invalid seed
        self.key.seed(int(seed))
        return self

    def seed(self) -> int:
        """Restart from a seed from the operating system; returns the seed."""
        seed = rng.fresh_seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed of the last `manual_seed` or `seed`."""
        return self.key.initial_seed

    def get_state(self) -> torch.Tensor:
        """Its state, a ByteTensor of 16 bytes."""
        return self.key.state()

    def set_state(self, state: torch.Tensor) -> JaxGenerator:
        """Continue from a state that `get_state` returned."""
        self.key.set_state(state)
        return self

    def clone_state(self) -> JaxGenerator:
        """Another generator that starts from the same state."""
        other = JaxGenerator()
        other.set_state(self.get_state())
        return other

    def graphsafe_get_state(self) -> JaxGenerator:
        """A generator that shares this one's state: draws from either advance both."""
        other = JaxGenerator()
        other.key = self.key
        return other

    def graphsafe_set_state(self, state: torch.Generator) -> JaxGenerator:
        """Share the state of another generator of the device from now on."""
        assert isinstance(state, JaxGenerator)
        self.key = state.key
        return self

    def get_offset(self) -> int:
        """The number of draws since the seed was set."""
        return int(_offset_in(self.get_state()))

    def set_offset(self, offset: int) -> JaxGenerator:
        """Continue as after this number of draws since the seed was set; returns the generator.

        Raises:
            RuntimeError: the offset is negative, or needs more than 63 bits.
        """
        if not 0 <= offset < 1 << 63:
            raise RuntimeError(f"an offset is a number of draws, from 0 to 2**63 - 1, not {offset}")
        state = self.get_state()
        _offset_in(state).fill_(offset)
        return self.set_state(state)

    def __reduce__(self) -> tuple[Callable[..., JaxGenerator], tuple[torch.Tensor]]:  # type: ignore[override]
        return _restored, (self.get_state(),)

    def __repr__(self) -> str:
        return f"<torch.Generator of the jax device, seed {self.initial_seed()}>"


torch_changes.not_opaque(JaxGenerator)


def _restored(state: torch.Tensor) -> JaxGenerator:
    return JaxGenerator().set_state(state)


def _offset_in(state: torch.Tensor) -> torch.Tensor:
    """The part of a state that holds the offset, as an int64 tensor over the same memory."""
    return state[8:].view(torch.int64)
