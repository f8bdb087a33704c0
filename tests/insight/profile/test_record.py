"""Recording leaves the session as it was, whatever happens inside."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import jaxtorch
from jaxtorch.insight.profile import ProfileError, profile, record
from jaxtorch.programs import stats, tracing, watching
from jaxtorch.storage.buffer import usage


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """After each test: there is no watcher and no trace, and a profile can be recorded."""
    depth, hooks = tracing.depth, len(torch.nn.modules.module._global_forward_pre_hooks)
    yield
    assert watching.watcher is None
    assert tracing.depth == depth
    assert len(torch.nn.modules.module._global_forward_pre_hooks) == hooks
    assert len(record(lambda: torch.ones(3, device="jax") + 1).runs) == 1


def test_runs_and_results() -> None:
    calls: list[int] = []
    recording = record(lambda: calls.append(1) or len(calls), repeat=3, warmup=2)  # type: ignore[func-returns-value]
    assert len(calls) == recording.result == 5
    assert len(recording.runs) == 3
    assert all(start < end for start, end in recording.runs)
    assert [a[1] <= b[0] for a, b in zip(recording.runs, recording.runs[1:], strict=False)] == [
        True,
        True,
    ]


def test_what_was_compiled_is_known_by_its_phases() -> None:
    x = torch.ones(5, 7, device="jax")
    recording = record(lambda: torch.special.i0e(x), repeat=2)
    assert {c.phase for c in recording.compilations if "i0e" in c.name} == {"trace", "lower", "xla"}
    start, end = recording.runs[0]
    assert all(start <= c.start < c.end <= end for c in recording.compilations)
    assert not record(lambda: torch.special.i0e(x)).compilations


def test_an_error_is_kept_with_what_was_seen_until_there() -> None:
    x = torch.ones(64, 64, device="jax")

    def fails() -> None:
        x @ x
        raise ValueError("mine")

    recording = record(fails, repeat=3)
    assert str(recording.error) == "mine"
    assert len(recording.runs) == 1
    assert [launch.record.name for launch in recording.launches] == ["matmul.default"]


def test_an_error_while_warming_up_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0, warmup=1)


def test_ctrl_c_ends_it() -> None:
    def stops() -> None:
        signal.raise_signal(signal.SIGINT)

    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        recording = record(stops)
    finally:
        signal.signal(signal.SIGINT, old)
    assert isinstance(recording.error, KeyboardInterrupt)


def test_a_profile_of_the_users_own_goes_on(tmp_path: Path) -> None:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(tmp_path), profiler_options=options)
    with pytest.raises(ProfileError, match="stop_trace"):
        record(lambda: None)
    torch.ones(3, device="jax").exp()
    jax.profiler.stop_trace()
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_profile_within_a_profile_is_an_error_of_the_inner_one() -> None:
    recording = record(lambda: record(lambda: None))
    assert isinstance(recording.error, RuntimeError)
    assert "one profile" in str(recording.error)


def test_code_that_stops_the_profiler_itself() -> None:
    with pytest.raises(ProfileError, match="stopped by the code"):
        record(jax.profiler.stop_trace)


@pytest.mark.parametrize("how", [{"repeat": 0}, {"warmup": -1}])
def test_nothing_to_run(how: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least once"):
        record(lambda: None, **how)


def test_an_operator_without_a_lowering_runs_on_the_cpu_as_always() -> None:
    """Eager calls take the general path during a recording, but are not traced."""
    x = torch.tensor([1, 2], dtype=torch.int32, device="jax")
    with jaxtorch.config(fallback="silent"):
        recording = record(lambda: torch.ops.aten._test_optional_floatlist(x.float(), [0.5, 1.0]))
    assert recording.error is None
    assert recording.result.tolist() == [1.5, 3.0]
    assert "aten::_test_optional_floatlist" in stats.fallbacks()


def test_launches_of_other_threads_are_recorded_with_their_lines() -> None:
    x = torch.ones(16, device="jax")
    recording: Any = None

    def other() -> None:
        x.exp()

    def work() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    recording = profile(work, warmup=1)
    (row,) = recording.lines
    assert row.location is not None
    assert row.location.line == other.__code__.co_firstlineno + 1
    assert not row.time.backward


def test_memory_at_most() -> None:
    x = torch.ones(256, 256, device="jax")

    def work() -> None:
        kept = [x + i for i in range(4)]
        del kept

    usage.peak = session = usage.allocated + 10 * x.numel() * 4
    recording = record(work, memory=True)
    assert recording.memory is not None
    assert recording.memory.before == recording.memory.after
    assert recording.memory.peak - recording.memory.before >= 4 * x.numel() * 4
    assert usage.peak == session  # the session's peak
    assert record(work).memory is None


def test_the_same_calls_on_and_off() -> None:
    x = torch.arange(6.0, device="jax").view(2, 3)

    def work() -> list[float]:
        y = x.t()[1:] * 2 + 1
        y[0] += 3
        return [float(v) for v in y.flatten().tolist()]

    expected = work()
    count = stats.compile_count()
    assert record(work).result == expected
    assert stats.compile_count() == count
