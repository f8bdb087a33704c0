"""The random training programs of `training_programs.py`, run on the jax device beside the CPU.

The same text runs on the CPU, where nothing is captured, and on the device; after each event all parameters, gradients,
buffers, optimizer state and losses must agree. A failure is shortened by leaving events out, and printed.

    python -m tests.capture.fuzz_training 17        # prints the program of seed 17, and how it ends
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

from .training_programs import Program, program

TOLERANCE = {"rtol": 1e-7, "atol": 1e-9}  # of float64, after at most some twenty steps
Record = list[tuple[str, torch.Tensor | None]]


@dataclass(frozen=True)
class Outcome:
    """How a program ended: "same", "refused" (with the message), "unstable" (see `is_unstable`) or
    "wrong" (with what differs, and the text).
    """

    kind: str
    message: str = ""
    text: str = ""


class Differs(AssertionError):
    """A difference after an event, with what the device has there.

    Args:
        message: what differs.
        event: the number of the event.
        record: everything recorded there on the device.
    """

    def __init__(self, message: str, event: int = -1, record: Record = ()):  # type: ignore[assignment]
        super().__init__(message)
        self.event, self.record = event, record


def run(given: Program, shorten: bool = True) -> Outcome:
    """Run a program on both sides. A wrong one is shortened first, unless `shorten` is off."""
    try:
        compare(given)
    except CaptureError as error:
        return Outcome("refused", str(error).partition("\n")[0], given.text())
    except Exception as error:
        if isinstance(error, Differs) and is_unstable(given, error):
            return Outcome("unstable", str(error), given.text())
        message = f"{type(error).__name__}: {error}"
        if shorten:
            given = _shortened(given)
        return Outcome("wrong", message, f"# seed {given.seed}\n{given.text()}")
    return Outcome("same")


def compare(given: Program) -> None:
    """Run a program on both sides; raises `Differs` at the first difference."""
    expected = records(given, "cpu", len(given.events))
    seen = 0

    def check(record: Record) -> None:
        nonlocal seen
        for (name, ours), (_, theirs) in zip(record, expected[seen], strict=True):
            try:
                assert (ours is None) == (theirs is None), f"{ours} and {theirs}"
                torch.testing.assert_close(ours, theirs, **TOLERANCE, equal_nan=True)
            except AssertionError as error:
                copied = [(n, t if t is None else t.detach().cpu().clone()) for n, t in record]
                raise Differs(f"after event {seen}, {name}: {error}", seen, copied) from None
        seen += 1

    _execute(given, "jax", check)


def is_unstable(given: Program, found: Differs) -> bool:
    """Whether rounding decides: the CPU itself has what the device has if its first weights differ by 1e-15 of them.

    Rprop takes the sign of a gradient, and some are zero except for rounding: after a batch norm, the gradient
    of a scale is the sum of normalized values, where the loss is linear. Every value after the event must be the
    device's in one of the perturbed runs.
    """
    if found.event < 0:
        return False
    open_entries = set(range(len(found.record)))
    for seed in range(24):
        noisy = records(given, "cpu", len(given.events), noise=seed + 1)
        for i in list(open_entries):
            (_, ours), (_, theirs) = found.record[i], noisy[found.event][i]
            if (ours is None) != (theirs is None):
                continue
            try:
                torch.testing.assert_close(ours, theirs, **TOLERANCE, equal_nan=True)
            except AssertionError:
                continue
            open_entries.discard(i)
        if not open_entries:
            return True
    return False


def records(given: Program, device: str, count: int, noise: int = 0) -> list[Record]:
    """What a device has after each event."""
    found: list[Record] = []
    _execute(given, device, found.append, noise)
    assert len(found) == count
    return found


def _execute(given: Program, device: str, check: Callable[[Record], None], noise: int = 0) -> None:
    def plain(function: Any) -> Any:
        return function

    def fails(call: Callable[[], Any]) -> None:
        """What cannot be captured raises, and leaves everything as it was; the CPU does not try."""
        if device == "cpu":
            return
        try:
            call()
        except CaptureError:
            return
        raise Differs("a step that asks for a value was captured")

    file = f"<training program {given.seed}>"
    default = torch.get_default_dtype()
    names = {
        "dev": device,
        "jit": plain if device == "cpu" else jaxtorch.jit,
        "pure": plain if device == "cpu" else jaxtorch.pure,
        "fails": fails,
        "filled": functools.partial(_filled, noise=noise),
        "numbers": _numbers,
        "record": lambda *state: check(_record(*state)),
    }
    try:
        torch.set_default_dtype(torch.float64)  # of Adam's counts too
        exec(compile(given.text(), file, "exec"), names)
    finally:
        torch.set_default_dtype(default)


def _numbers(*size: int, start: int = 0) -> torch.Tensor:
    count = torch.Size(size).numel()
    return torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + start).reshape(size)


def _filled(module: nn.Module, noise: int = 0) -> nn.Module:
    """The module with fixed weights; a `noise` other than 0 is the seed of a relative change of 1e-15."""
    generator = torch.Generator().manual_seed(noise)
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            values = _numbers(*p.shape, start=i) * 0.7
            if noise:
                values *= 1 + 1e-15 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(values)
    return module


def _record(model: nn.Module, extra: torch.Tensor, opts: list[Any], losses: list[Any]) -> Record:
    parameters = {**dict(model.named_parameters()), "extra": extra}
    record: Record = []
    for name, p in parameters.items():
        record += [(name, p), (f"{name}.grad", p.grad)]
        for i, opt in enumerate(opts):
            state = opt.state.get(p, {})
            record += [(f"opt{i}.state[{name}]['{k}']", _tensor(state[k])) for k in sorted(state)]
    record += list(model.named_buffers())
    record += [(f"losses[{i}]", loss) for i, loss in enumerate(losses)]
    return [(name, None if t is None else t.detach().cpu().clone()) for name, t in record]


def _tensor(value: Any) -> torch.Tensor | None:
    return value if value is None or isinstance(value, torch.Tensor) else torch.tensor(value)


def _shortened(given: Program) -> Program:
    """The program without the events that the failure does not need."""
    for i in reversed(range(len(given.events))):
        less = replace(given, events=given.events[:i] + given.events[i + 1 :])
        if run(less, shorten=False).kind == "wrong" and _runs_on_the_cpu(less):
            given = less
    return given


def _runs_on_the_cpu(given: Program) -> bool:
    try:
        records(given, "cpu", len(given.events))
    except Exception:
        return False
    return True


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(program(int(argument)).text())
        print(run(program(int(argument))))
