"""CPU generators in captured code: numbers drawn on the CPU during tracing would be the same at each run.

A CPU generator may be passed for a device tensor: a key is drawn from it before each run (`programs/rng.py`), and the
trace leaves its state unchanged. If its state differs after the trace, the code drew from it on the CPU or seeded it.

The state of the default generator proves less: other threads also advance it, and `torch.manual_seed` seeds it along
with the device's. So the code is taken to have drawn from it only if the recorder saw a call that draws and the state
differs from what seeding alone would give. In user code this is an error. In library code it is a warning, because some
libraries draw numbers that do not matter (LayerDrop at rate 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from ..base import torch_private as private
from .dependencies.recorder import Recorder
from .errors import CaptureError, warn_of_constant

_ADVICE = (
    'Draw on the device (device="jax"), which takes a new key from the CPU generator at each run. Seed it outside, or '
    'use torch.Generator(device="jax"), which can be seeded inside.'
)


@contextmanager
def untouched(values: Iterable[object], recorder: Recorder) -> Iterator[None]:
    """Check CPU generators while code that can reach these values is traced.

    Raises:
        CaptureError: if the code changed the state of a CPU generator among them, or drew from the default one.
    """
    default = torch.default_generator
    before = {id(v): (v, v.get_state()) for v in values if type(v) is private.CpuGenerator}
    _, state = before.pop(id(default), (default, default.get_state()))
    try:
        yield
    except BaseException:
        if recorder.draws:
            default.set_state(state)
        raise
    if any(not torch.equal(generator.get_state(), state) for generator, state in before.values()):
        for generator, old in before.values():
            generator.set_state(old)
        raise CaptureError(
            "captured code draws from or seeds a CPU generator, which happens only once, during tracing",
            _ADVICE,
        )
    if recorder.draws and not _is_as_before(default, state):
        draw = recorder.draws[0]
        if draw.by_user:
            default.set_state(state)
            raise CaptureError(
                f"captured code draws random numbers on the CPU ({draw.name}), which happens only once, during tracing",
                'Draw on the device: device="jax", or %jax on.',
                draw.file,
                draw.line,
            )
        what = f"draws random numbers on the CPU ({draw.name})"
        warn_of_constant(what, draw.file, draw.line)


def _is_as_before(generator: torch.Generator, state: torch.Tensor) -> bool:
    """Whether nothing was drawn from a generator, though it may have been seeded."""
    now = generator.get_state()
    if torch.equal(now, state):
        return True
    seeded = torch.Generator().manual_seed(generator.initial_seed())
    return torch.equal(now, seeded.get_state())
