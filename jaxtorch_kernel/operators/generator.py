"""`torch.Generator(device="jax")`: a source of random numbers of its own.

The object is a CPU generator of torch's to C++, which passes generators between operators and knows no other kind that
Python can make. Of it only the identity of the C++ object reaches a kernel (`_cdata`); by that the kernel finds its
`Source` (`programs/rng.py`). The CPU generator beneath has the same seed: an operator of the CPU that is given a
generator of this device draws from it, where cuda's would be refused.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from ..base import torch_private as private
from ..programs import rng, tracing
from ..storage import placement

_DEFAULT_SEED = 67280421310721  # that of every generator of torch's that was given none
_lock = threading.Lock()


class JaxGenerator(torch._C.Generator):
    """A generator of the jax device, with the methods of torch's.

    After `manual_seed(n)` it gives the numbers that the device itself gives after `torch.manual_seed(n)`.

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
        self.source = rng.Source(_DEFAULT_SEED, placement.current())
        trace = tracing.current()
        if trace is not None:
            trace.add_born(self.source)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # an attribute there
        """`jax:0`."""
        return private.DEVICE

    def manual_seed(self, seed: int) -> JaxGenerator:
        """Start anew from a seed; returns the generator."""
        super().manual_seed(seed)  # which refuses what is no seed
        self.source.seed(int(seed))
        return self

    def seed(self) -> int:
        """Start anew from a seed of the operating system; returns it."""
        seed = rng.fresh_seed()
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed that it started from."""
        return self.source.initial_seed

    def get_state(self) -> torch.Tensor:
        """Its state, a ByteTensor of 16 bytes."""
        return self.source.state()

    def set_state(self, state: torch.Tensor) -> JaxGenerator:
        """Go on from what `get_state` gave."""
        self.source.set_state(state)
        return self

    def clone_state(self) -> JaxGenerator:
        """Another generator that goes on from the same state."""
        other = JaxGenerator()
        other.set_state(self.get_state())
        return other

    def graphsafe_get_state(self) -> JaxGenerator:
        """A generator of the same state: what one draws, the other does not."""
        other = JaxGenerator()
        other.source = self.source
        return other

    def graphsafe_set_state(self, state: Any) -> JaxGenerator:
        """Share the state of another generator from now on."""
        self.source = state.source
        return self

    def get_offset(self) -> int:
        """Nothing: the state is a key, which has no offset."""
        raise RuntimeError("a jax generator's state is a key and has no offset: use get_state()")

    def set_offset(self, offset: int) -> JaxGenerator:
        """Nothing: the state is a key, which has no offset."""
        raise RuntimeError("a jax generator's state is a key and has no offset: use set_state()")

    def __reduce__(self) -> Any:
        return _restored, (self.get_state(),)

    def __repr__(self) -> str:
        return f"<torch.Generator of the jax device, seed {self.initial_seed()}>"


private.not_opaque(JaxGenerator)


def _restored(state: torch.Tensor) -> JaxGenerator:
    return JaxGenerator().set_state(state)
