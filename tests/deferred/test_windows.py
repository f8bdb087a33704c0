"""Windows as programs: where they end, what they compile, and that they compute the same as immediate execution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.deferred import recorder as recording
from jaxtorch.deferred.plan import Plan
from jaxtorch.deferred.switch import switch
from jaxtorch.programs import stats
from jaxtorch.storage.buffer import buffer_of

from . import modes
from .windows import compiled, is_pending, open_calls, tensor

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("deferred")


# -- windows as programs -------------------------------------------------------------------------------------------


def repeated(step: Callable[[], object], times: int = 5) -> None:
    for _ in range(times):
        step()
        switch.boundary()


def test_a_window_that_repeats_is_compiled_once() -> None:
    x = tensor()
    before = len(compiled())
    results = []

    def step() -> None:
        y = x
        for _ in range(5):
            y = (y * 0.5).sin()
        results.append(y)

    repeated(step)
    assert len(compiled()) == before + 1
    expected = x.cpu()
    for _ in range(5):
        expected = (expected * 0.5).sin()
    for result in results:
        torch.testing.assert_close(result.cpu(), expected)


def test_a_number_that_changes_compiles_nothing() -> None:
    x, before = tensor(), len(compiled())
    for i in range(6):
        y = (x * (1.0 / (i + 1)) + i).sin().cos()
        switch.boundary()
        torch.testing.assert_close(y.cpu(), (x.cpu() * (1.0 / (i + 1)) + i).sin().cos())
    assert len(compiled()) == before + 1


def test_an_index_that_changes_compiles_few_programs() -> None:
    x, before = torch.arange(100.0).reshape(50, 2).to("jax"), len(compiled())
    for i in range(50):
        y = (x[i] + 1) * 2
        x[(7 * i) % 50].sub_(0)
        switch.boundary()
        assert y.tolist() == [(2 * i + 1) * 2, (2 * i + 2) * 2]
    assert len(compiled()) <= before + 3


def test_values_that_nobody_holds_are_not_results() -> None:
    x = tensor()
    kept = []

    def step() -> None:
        a = x + 1
        b = a * 2
        c = b.sin()
        kept[:] = [c.cos()]

    repeated(step)
    record = next(r for r in reversed(stats.compiled) if "deferred" in r.name)
    handle = record.handle()
    assert handle is not None
    assert len(handle.executable.out_info) == 1  # type: ignore[arg-type]  # a list of them


def test_results_that_are_held_sometimes_use_the_same_program() -> None:
    x, before, kept = tensor(), len(compiled()), []
    for i in range(12):
        a = x + 1
        b = a * 2
        if i % 2:
            kept.append(a)
        kept.append(b.sin())
        del a, b
        switch.boundary()
    assert len(compiled()) <= before + 2  # for those that were needed first, and for all
    for y in kept:
        assert not is_pending(y)


def test_what_is_overwritten_is_donated() -> None:
    x = tensor()
    torch.jax.synchronize()
    expected = x.cpu()
    for _ in range(4):
        array = buffer_of(x).array
        x.add_(1).mul_(0.5)
        x.sub_(0.25)
        del array
        before = buffer_of(x)
        switch.boundary()
        assert buffer_of(x) is before
        expected = (expected + 1) * 0.5 - 0.25
    assert torch.equal(x.cpu(), expected)


@pytest.mark.parametrize("times", [1, 4])
def test_an_array_that_something_else_holds_is_not_donated(times: int) -> None:
    x = tensor()
    held = []
    for _ in range(times):
        held.append((jaxtorch.to_jax(x), x.cpu()))
        x.add_(1).mul_(2)
        switch.boundary()
    for array, values in held:
        assert array.tolist() == values.tolist()


def test_random_numbers_are_those_of_immediate_execution() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(3)
        cpu = torch.Generator().manual_seed(4)
        own = torch.Generator("jax").manual_seed(5)
        drawn = []
        for _ in range(4):
            drawn += [torch.rand(3, device="jax"), torch.randn(2, 2, device="jax")]
            drawn.append(torch.rand(2, device="jax", generator=cpu))
            drawn.append(torch.rand(2, device="jax", generator=own))
            drawn.append(nn.functional.dropout(torch.ones(8, device="jax")))
            switch.boundary()
        return [t.cpu() for t in drawn]

    deferred = draw()
    with modes.immediate():
        expected = draw()
    for a, b in zip(deferred, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_training_loop_is_that_of_immediate_execution() -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
        )
        net.to("jax")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        x, y = torch.randn(16, 8).to("jax"), torch.randint(3, (16,)).to("jax")
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    before = len(compiled())
    deferred = train()
    assert 1 <= len(compiled()) - before <= 3
    with modes.immediate():
        expected = train()
    assert deferred == pytest.approx(expected, rel=1e-4)


# -- where windows end ---------------------------------------------------------------------------------------------


def test_an_optimizer_step_ends_a_window() -> None:
    w = nn.Parameter(tensor())
    optimizer = torch.optim.SGD([w], lr=0.1)
    w.grad = tensor()
    torch.jax.synchronize()
    y = w.detach() + 1
    assert is_pending(y)
    optimizer.step()
    assert not is_pending(y)
    assert open_calls() == 0


def test_a_loop_without_an_end_is_cut_where_it_repeats() -> None:
    x, before = tensor(), len(compiled())
    ends: list[int] = []
    for _ in range(400):
        y = x
        for _ in range(6):
            y = (y * 0.5).sin()
        ends.append(open_calls())
    torch.jax.synchronize()
    assert max(ends) < recording.MOST_CALLS
    late = ends[-100:]
    assert max(late) <= 60, "after the first full window, windows end where the loop repeats"
    assert len(compiled()) - before <= 3
    torch.testing.assert_close(y.cpu().isnan().any(), torch.tensor(False))


@pytest.mark.slow
def test_a_window_is_not_larger_than_allowed() -> None:
    x = torch.zeros(1024, 1024, device="jax")
    most = 0
    for i in range(20):
        x = x.repeat(2, 1) if i < 7 else x + 1
        window = switch.recorder.window
        most = max(most, window.node.nbytes if window.node else 0)
    assert most <= recording.MOST_BYTES
    assert x[0, 0].item() == 13


# -- errors --------------------------------------------------------------------------------------------------------


def test_a_wrong_call_raises_at_its_line_and_leaves_the_window() -> None:
    x = tensor()
    y = x + 1
    with pytest.raises(RuntimeError, match=r"shape|size"):
        x @ torch.ones(3, 3, device="jax")
    with pytest.raises(RuntimeError):
        torch.add(x, 1, out=torch.empty(4, 4, dtype=torch.int32, device="jax"))
    assert is_pending(y)
    assert y.cpu().equal(torch.arange(16.0).reshape(4, 4) + 1)


def test_a_window_that_fails_to_compile_runs_call_by_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Plan) -> None:
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(Plan, "compile", fail)
    x = tensor()
    for _ in range(4):
        y = (x + 1).sin().cos() * 3
        switch.boundary()
        torch.testing.assert_close(y.cpu(), (x.cpu() + 1).sin().cos() * 3)
    assert "no compiler today" in caplog.text


def test_a_window_that_fails_as_one_program_names_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    from jaxtorch.deferred import run

    x = tensor()

    def step() -> Tensor:
        return (x + 1).sin().cos() * 3

    repeated(step)

    def failing(*arguments: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    original = run.run_and_settle
    monkeypatch.setattr(run, "run_and_settle", failing)
    y = step()
    with pytest.raises(torch.OutOfMemoryError, match=r"`mul.*test_windows\.py, line \d+"):
        y.cpu()
    monkeypatch.setattr(run, "run_and_settle", original)
    torch.testing.assert_close(step().cpu(), (x.cpu() + 1).sin().cos() * 3)


def test_a_program_that_fails_leaves_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    from jaxtorch.deferred import run

    x, z = tensor(), tensor()
    torch.jax.synchronize()
    y = x + 1
    x.add_(5)  # is to be written, but is not
    w = z.cos()
    original, names = run.run_into, []

    def failing(execute: object, operands: object, buffers: object) -> None:
        names.append(1)
        if len(names) == 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        original(execute, operands, buffers)  # type: ignore[arg-type]  # what the program is given

    monkeypatch.setattr(run, "run_into", failing)
    with pytest.raises(torch.OutOfMemoryError, match=r"add.*test_windows\.py, line \d+"):
        y.cpu()
    monkeypatch.setattr(run, "run_into", original)
    assert y.cpu().equal(torch.arange(16.0).reshape(4, 4) + 1)
    assert x.cpu().equal(torch.arange(16.0).reshape(4, 4)), "the write did not happen"
    with pytest.raises(RuntimeError, match="failed"):
        w.cpu()
    assert (x + 1).cpu().equal(torch.arange(16.0).reshape(4, 4) + 1), "and the device goes on"
