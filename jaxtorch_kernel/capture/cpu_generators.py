"""CPU generators in captured code: what it draws on the CPU would be the same numbers at each run.

For a tensor of the device a CPU generator may be given: a key is drawn from it before each run (`device/rng.py`), and
the trace leaves it as it is. Where its state is another after the trace, the code drew from it on the CPU, or seeded
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .errors import CaptureError


@contextmanager
def untouched(values: Iterable[Any]) -> Iterator[None]:
    """Hold while code is traced that can reach these values.

    Raises:
        CaptureError: it changed the state of a CPU generator among them.
    """
    before = {id(v): (v, v.get_state()) for v in values if type(v) is torch._C.Generator}
    yield
    if any(not torch.equal(generator.get_state(), state) for generator, state in before.values()):
        for generator, state in before.values():
            generator.set_state(state)
        raise CaptureError(
            "captured code draws from a generator on the CPU, or seeds it: that happens once, when it is traced",
            'Draw on the device (device="jax"), where a CPU generator is drawn from at each run; seed it outside, or '
            'use torch.Generator(device="jax"), which may be seeded inside.',
        )
