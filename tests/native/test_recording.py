"""A recorded call is the same step of a window, whether the compiled kernel or the general path records it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.deferred.recorder import Recorder
from jaxtorch.deferred.switch import switch
from jaxtorch.dispatch import deferring
from jaxtorch.dispatch.operation import Operation
from jaxtorch.operators.choice import operation_of
from jaxtorch.storage.buffer import buffer_of
from jaxtorch.storage.pending import index_of

from . import COMPILED
from .test_calls import ALWAYS_GENERAL, CALLS, facts

pytestmark = COMPILED
aten = torch.ops.aten
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def deferred() -> Iterator[None]:
    jaxtorch.config.update(execution="deferred")
    switch.policy.pauses = False
    try:
        yield
    finally:
        switch.policy.pauses = True
        jaxtorch.config.update(execution="immediate")


def steps(way: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, object, object]:
    """Where a window of three calls ends in the tree, what else it recorded, and what the calls give."""
    switch.recorder.flush()
    first = aten.relu.default(torch.ones(2, device="jax"))  # opens the window
    made = [way(*args, **kwargs) for _ in range(3)]
    window = switch.recorder.window
    recorded = (window.numbers[:], window.offsets[:], len(window.inputs), len(window.buffers))
    results = [made[0]] if isinstance(made[0], Tensor) else list(made[0])
    pending = [buffer_of(r).pending and index_of(buffer_of(r)) for r in results]
    node = window.node
    switch.recorder.flush()
    assert first.tolist() == [1.0, 1.0]
    return node, (recorded, pending), [facts(m) for m in made]


@pytest.mark.parametrize("name", sorted(set(CALLS) - ALWAYS_GENERAL))
def test_both_take_the_same_steps(name: str, monkeypatch: Any) -> None:
    op, args, *rest = CALLS[name]
    kwargs: dict[str, Any] = rest[0] if rest else {}
    kernel = operation_of(op).kernel
    expected = steps(kernel.general, args, kwargs)
    for _ in range(2):  # learned, known
        steps(kernel, args, kwargs)
    reached: list[object] = []
    original = Operation.general

    def general(self: Operation, *args: object, **kwargs: object) -> object:
        reached.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Operation, "general", general)
    assert steps(kernel, args, kwargs) == expected
    assert operation_of(op) not in reached


def test_a_window_that_is_full_runs(monkeypatch: Any) -> None:
    monkeypatch.setattr(switch.recorder, "most_calls", 10)
    x = torch.ones(3, device="jax")
    for _ in range(3):
        y = x + x
        switch.recorder.flush()
    for _ in range(34):
        y = y + x
    assert switch.recorder.window.node.calls < 10
    assert y.tolist() == [36.0] * 3


def test_an_input_that_was_written_since() -> None:
    x, y = torch.ones(3, device="jax"), torch.ones(3, device="jax")
    for i in range(5):
        z = x + y
        x.add_(1)
        assert (z + x).tolist() == [2.0 * i + 4] * 3


def test_a_number_that_does_not_fit_is_refused_at_its_line() -> None:
    half, mask = (
        torch.zeros(3, dtype=torch.float16, device="jax"),
        torch.ones(3, dtype=torch.bool, device="jax"),
    )
    for _ in range(4):
        good = half.masked_fill(mask, 2.0)
    with pytest.raises(RuntimeError, match="without overflow"):
        half.masked_fill(mask, 1e6)
    assert good.tolist() == [2.0] * 3


def test_other_recorders_are_not_bypassed(monkeypatch: Any) -> None:
    """Only the class that the module was told about has the slots that it reads."""
    x = torch.ones(3, device="jax")
    for _ in range(3):
        x + x
    seen: list[object] = []

    class Other(Recorder):
        def call(self, operation: Any, program: Any, call: Any) -> object:
            seen.append(program)
            return NotImplemented

        hot = call

    switch.recorder.flush()
    monkeypatch.setattr(deferring, "recorder", Other(switch.policy))
    assert (x + x).tolist() == [2.0] * 3
    assert seen
