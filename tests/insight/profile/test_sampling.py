"""Long runs: the profiler runs in windows, pauses, and what it reports is that of the whole run."""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import jaxtorch
from jaxtorch.insight.profile import Profile, ProfileError, profile, record
from jaxtorch.insight.profile.events import Reader
from jaxtorch.insight.profile.sampling import Sampler

from .code import Ran, adds_up, ran

STEPS = 400
CODE = """
def work():
    for _ in range(400):
        y = x @ w
        z = y.exp()
"""
TIMED = """
def work():
    end = time.perf_counter() + 3
    while time.perf_counter() < end:
        y = x @ w
        z = y.exp()
        steps.append(1)
"""
BACKWARD = """
def work():
    for _ in range(100):
        y = x @ w
        loss = y.exp().sum()
        loss.backward()
"""
BACKWARD_TIMED = """
def work():
    end = time.perf_counter() + 2
    while time.perf_counter() < end:
        y = x @ w
        loss = y.exp().sum()
        loss.backward()
"""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the limits of windows."""

    def change(**values: float) -> None:
        for name, value in values.items():
            monkeypatch.setattr(f"jaxtorch.insight.profile.sampling._{name}", value)

    return change


def tensors(gradient: bool = False) -> dict[str, Any]:
    return {
        "x": torch.randn(64, 64, device="jax"),
        "w": torch.randn(64, 64, device="jax", requires_grad=gradient),
    }


def in_windows(limits: Callable[..., None], folder: Path, code: str, **names: Any) -> Ran:
    limits(FIRST=0.005, LONGEST=0.005, FREE=1000)
    found = ran(folder, code, names, warmup=1)
    assert len(found.profile.recording.windows) > 2
    return found


def test_windows_without_a_pause_count_every_launch(
    tmp_path: Path, limits: Callable[..., None]
) -> None:
    found = in_windows(limits, tmp_path, CODE, **tensors())
    recording = found.profile.recording
    assert {span.weight for span in recording.spans} == {1.0}
    assert recording.recorded == recording.total
    assert found.by_line[3].count == STEPS
    assert found.by_line[4].count == STEPS
    assert not found.profile.unattributed.total
    for before, after in zip(recording.windows, recording.windows[1:], strict=False):
        assert before.start < before.end == after.start


def test_a_gradient_is_of_its_forward_line_in_every_window(
    tmp_path: Path, limits: Callable[..., None]
) -> None:
    found = in_windows(limits, tmp_path, BACKWARD, **tensors(gradient=True))
    assert found.by_line[3].flops == 100 * 2 * 2 * 64**3
    assert found.by_line[3].backward
    assert found.by_line[4].backward


@pytest.fixture
def pauses(limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Short windows with a pause after each, whatever reading them takes."""
    limits(FIRST=0.02, LONGEST=0.02)
    seconds = itertools.cycle([0.1, 0.0])  # when a window ends, and when it is time for the next
    monkeypatch.setattr(Sampler, "_pause", lambda self: next(seconds))


@pytest.mark.usefixtures("pauses")
def test_what_the_pauses_hide_is_estimated(tmp_path: Path) -> None:
    names = {**tensors(), "time": time, "steps": []}
    began = time.perf_counter()
    found = ran(tmp_path, TIMED, names)
    took = time.perf_counter() - began
    recording = found.profile.recording
    assert len(recording.windows) > 2
    assert recording.spans[0].weight == 1
    assert recording.spans[-1].weight > 1
    assert recording.recorded < 0.9 * recording.total
    assert found.profile.wall == recording.total < took * 1e9
    assert found.by_line[4].count == pytest.approx(len(names["steps"]), rel=0.7)
    assert found.by_line[4].count == pytest.approx(found.by_line[5].count, rel=0.3)
    host = found.profile.host
    parts = host.compile + host.waiting + host.transfer + host.dispatch + host.python
    assert parts == pytest.approx(found.profile.wall)
    adds_up(found.profile)


@pytest.mark.usefixtures("pauses")
def test_a_gradient_is_of_its_forward_line_after_pauses(tmp_path: Path) -> None:
    """What a pause launched is done before the next window begins, so that runs and launches are paired."""
    names = {**tensors(gradient=True), "time": time}
    names["x"] = torch.randn(512, 64, device="jax")
    found = ran(tmp_path, BACKWARD_TIMED, names, warmup=1)
    recording = found.profile.recording
    assert recording.recorded < 0.9 * recording.total
    assert len(recording.windows) > 2
    assert not found.profile.unattributed.total
    assert found.by_line[4].backward
    assert not [line for line in found.by_line if line not in (4, 5, 6)]


def test_a_run_that_no_window_has_counts_as_a_run(limits: Callable[..., None]) -> None:
    limits(FIRST=0.0, LONGEST=0.0, FREE=0.0, SHARE=1e-6)
    x = torch.ones(64, 64, device="jax")
    x @ x
    found = profile(lambda: [x @ x for _ in range(20)], repeat=5)
    recording = found.recording
    assert recording.count == found.repeat == 5
    assert len(recording.runs) < 5
    assert found.wall == pytest.approx(recording.total / 5)


def cut(function: Callable[[], Any], limits: Callable[..., None]) -> Profile:
    """Profile a function whose first window the watching thread ends."""
    limits(FIRST=-1.0, GROWTH=-math.inf)
    return profile(function)


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as a window follows another."""
    event, resume = threading.Event(), Sampler._resume

    def then_tell(self: Sampler, gap: bool) -> None:
        resume(self, gap)
        event.set()

    monkeypatch.setattr(Sampler, "_resume", then_tell)
    return event


def in_another_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("where", ["plain JAX", "another thread", "this thread"])
def test_work_after_a_cut_is_recorded(
    limits: Callable[..., None], resumed: threading.Event, where: str
) -> None:
    """A process that grows, as by the user's own data, ends a window: what follows has one, whoever launches it."""
    add = jax.jit(lambda x: x + 1)
    plain = add(jnp.ones(8))
    x = torch.ones(8, device="jax")
    works: dict[str, Callable[[], object]] = {
        "plain JAX": lambda: add(plain).block_until_ready(),
        "another thread": lambda: in_another_thread(lambda: x + 1),
        "this thread": lambda: x + 1,
    }

    def work() -> None:
        assert resumed.wait(60)
        works[where]()

    found = cut(work, limits)
    assert len(found.recording.windows) > 1
    assert found.device
    (span,) = found.recording.spans[1:]
    assert span.weight > 1  # the run went on while the window before was read
    assert found.operators[0].time.count == span.weight


def test_code_that_launches_nothing_is_cut_when_the_process_grows(
    limits: Callable[..., None],
) -> None:
    add = jax.jit(lambda x: x + 1)
    x = add(jnp.ones(8))

    def work() -> None:
        end = time.perf_counter() + 3
        while time.perf_counter() < end:
            add(x).block_until_ready()

    found = cut(work, limits)
    assert found.recording.recorded < 0.9 * found.wall
    assert found.wall > 2.9e9
    assert found.device


def test_no_pause_comes_before_the_first_work_of_the_device(limits: Callable[..., None]) -> None:
    """As of a cell that compiles for long, and then runs once."""
    limits(FIRST=0.0, FREE=-1e6)
    x = torch.ones(8, device="jax")
    x + 1

    def work() -> None:
        time.sleep(0.1)
        x + 1

    found = profile(work)
    assert len(found.recording.windows) == 2
    assert found.operators[0].time.count == 1


def test_a_compilation_is_not_cut(limits: Callable[..., None]) -> None:
    @jaxtorch.pure
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(2)
        return x + 1

    x = torch.ones(3, device="jax")
    recording = cut(lambda: slow(x), limits).recording
    traces = [c for c in recording.compilations if c.phase == "trace"]  # some within others
    trace = max(traces, key=lambda c: c.end - c.start)
    assert trace.end - trace.start > 1.9e9  # a window ends what it cuts
    # The thread may end the window between two phases, and before the run ends.
    assert any(w.start <= trace.start < trace.end <= w.end for w in recording.windows)


def test_an_interrupt_while_a_part_is_read_ends_the_run(
    limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(FIRST=0.0, LONGEST=0.0)
    x = torch.ones(8, device="jax")
    read, count = Reader.read, 0

    def interrupted(self: Reader, data: Any, start: int) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return read(self, data, start)

    monkeypatch.setattr(Reader, "read", interrupted)
    recording = record(lambda: [x + 1 for _ in range(100)])
    assert isinstance(recording.error, KeyboardInterrupt)
    assert len(recording.windows) == 1
    monkeypatch.undo()
    assert len(record(lambda: x + 1).windows) == 1


def test_an_interrupt_while_the_last_part_is_read_is_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: Reader, data: Any, start: int) -> Any:
        raise KeyboardInterrupt

    x = torch.ones(8, device="jax")
    monkeypatch.setattr(Reader, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(lambda: x + 1)
    monkeypatch.undo()
    assert len(record(lambda: x + 1).windows) == 1


def test_a_profiler_that_is_started_in_a_pause_is_an_error(
    tmp_path: Path, limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(FIRST=0.0)
    pauses = iter([0.2])
    monkeypatch.setattr(Sampler, "_pause", lambda self: next(pauses, 0.0))
    x = torch.ones(8, device="jax")

    def work() -> None:
        while not started():
            x + 1
        end = time.perf_counter() + 1
        while time.perf_counter() < end:
            x + 1

    def started() -> bool:
        try:
            jax.profiler.start_trace(str(tmp_path))
        except RuntimeError:
            return False
        return True

    try:
        with pytest.raises(ProfileError, match="started JAX's profiler itself"):
            record(work)
    finally:
        jax.profiler.stop_trace()


def test_windows_leave_no_files_and_no_threads(
    limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits(FIRST=0.0)
    x = torch.ones(8, device="jax")
    record(lambda: [x + 1 for _ in range(10)])
    assert not list(tmp_path.iterdir())
    assert "jaxtorch-profile" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    ("read", "elapsed", "pause"), [(0.9, 1, 0), (2, 1, 4), (2, 4.9, 0.1), (3, 100, 0)]
)
def test_reading_takes_a_second_and_a_fifth_of_the_time(
    read: float, elapsed: float, pause: float
) -> None:
    sampler = Sampler(lambda: None, lambda: 0)
    sampler._reader.on_device = True
    sampler._read = read
    sampler._begun = time.perf_counter() - elapsed - read
    assert sampler._pause() == pytest.approx(pause, abs=0.05)
