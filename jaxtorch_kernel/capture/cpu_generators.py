"""CPU generators in captured code: what it draws on the CPU would be the same numbers at each run.

For a tensor of the device a CPU generator may be given: a key is drawn from it before each run (`programs/rng.py`), and
the trace leaves it as it is. Where its state is another after the trace, the code drew from it on the CPU, or seeded
it.

The default generator is moved by other threads too, and `torch.manual_seed` seeds it beside the device's. So it counts
as drawn from where the recorder saw a call that draws, and its state is none that seeding alone gives. In the user's
own code that is an error; in a library's a warning, for some draw a number that does not matter (LayerDrop at rate 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .dependencies.record import warn_of_a_constant
from .dependencies.recorder import Recorder
from .errors import CaptureError

_ADVICE = (
    'Draw on the device (device="jax"), where a CPU generator is drawn from at each run; seed it outside, or '
    'use torch.Generator(device="jax"), which may be seeded inside.'
)


@contextmanager
def untouched(values: Iterable[Any], recorder: Recorder) -> Iterator[None]:
    """Hold while code is traced that can reach these values.

    Raises:
        CaptureError: it changed the state of a CPU generator among them, or drew from the default one.
    """
    default = torch.default_generator
    before = {id(v): (v, v.get_state()) for v in values if type(v) is torch._C.Generator}
    _, state = before.pop(id(default), (default, default.get_state()))
    try:
        yield
    except BaseException:
        if recorder.draws:
            default.set_state(state)
        raise
    if any(not torch.equal(generator.get_state(), state) for generator, state in before.values()):
        for generator, own in before.values():
            generator.set_state(own)
        raise CaptureError(
            "captured code draws from a generator on the CPU, or seeds it: that happens once, when it is traced",
            _ADVICE,
        )
    if recorder.draws and not _is_as_before(default, state):
        draw = recorder.draws[0]
        if draw.by_user:
            default.set_state(state)
            raise CaptureError(
                f"captured code draws random numbers on the CPU ({draw.name}), which happens once, when it is traced",
                'Draw on the device: device="jax", or %jax on.',
                draw.file,
                draw.line,
            )
        what = f"draws random numbers on the CPU ({draw.name})"
        warn_of_a_constant(what, draw.file, draw.line)


def _is_as_before(generator: torch.Generator, state: torch.Tensor) -> bool:
    """Whether nobody drew from a generator, though it may have been seeded."""
    now = generator.get_state()
    if torch.equal(now, state):
        return True
    seeded = torch.Generator().manual_seed(generator.initial_seed())
    return torch.equal(now, seeded.get_state())
