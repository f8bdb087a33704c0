"""The memory of code over time: exact sizes, the peak and what held it, and nothing left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

import jaxtorch
from jaxtorch.insight import allocations
from jaxtorch.insight.allocations import Held, Timeline, recorded, thinned
from jaxtorch.storage.buffer import _Counted, usage

UNIT = 256 * 1024 * 4  # bytes of `ones()`


@pytest.fixture(autouse=True)
def nothing_of_earlier_tests() -> Iterator[None]:
    gc.collect()
    methods = _Counted.__init__, _Counted.__del__
    yield
    assert (_Counted.__init__, _Counted.__del__) == methods  # nobody watches any more


def ones(count: int = 1) -> torch.Tensor:
    return torch.ones(count * 256, 1024, device="jax")


def rise_and_fall() -> None:
    one = ones()
    three = ones(3)
    del one
    two = ones(2)
    del three, two


def relative(timeline: Timeline) -> list[float]:
    return [(held - timeline.before) / UNIT for _, held in timeline.points]


def test_each_step_is_a_point_and_the_highest_is_the_peak() -> None:
    timeline = recorded(rise_and_fall, {})
    assert relative(timeline) == [0, 1, 4, 3, 5, 2, 0]
    assert (timeline.peak - timeline.before) / UNIT == 5
    moments = [moment for moment, _ in timeline.points]
    assert moments == sorted(moments)
    assert timeline.peak_at == moments[4]
    assert timeline.seconds >= moments[-1]


def test_what_held_the_peak_has_its_line_its_times_and_its_name() -> None:
    kept = {"before": ones(4)}

    def code() -> None:
        kept["during"] = ones(3)
        kept["sum"] = kept["during"] + 1
        del kept["during"]

    timeline = recorded(code, kept)
    held: dict[int, list[Held]] = {}
    for entry in timeline.held:
        held.setdefault(entry.nbytes // UNIT, []).append(entry)
    (before,) = [e for e in held[4] if e.name == "before"]
    assert (before.made, before.freed) == (None, None)
    during, total = sorted(held[3], key=lambda e: e.made or 0)
    assert during.name is None
    assert during.made is not None
    assert during.freed is not None
    assert 0 < during.made < timeline.peak_at < during.freed
    assert (total.name, total.freed) == ("sum", None)
    assert total.made_by.startswith("add")
    start = code.__code__.co_firstlineno
    assert total.location is not None
    assert total.location.line - start == 2
    assert timeline.held[0].nbytes == max(e.nbytes for e in timeline.held)


def test_a_long_recording_is_folded_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def code() -> None:
        for count in (1, 2, 7, 3):
            kept = [ones() for _ in range(count)]
            del kept

    whole = recorded(code, {})
    for size in (1, 2, 5):
        monkeypatch.setattr(allocations, "_FOLD", size)
        folded = recorded(code, {})
        assert relative(folded) == relative(whole)
        assert (folded.peak - folded.before) / UNIT == 7
        assert len([h for h in folded.held if h.made is not None]) == 7


def test_many_points_keep_the_highest_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [(i / 10, i % 97) for i in range(5000)]
    kept = thinned(points, 50)
    assert len(kept) <= 51
    assert max(held for _, held in kept) == 96
    assert kept[-1] == points[-1]
    monkeypatch.setattr(allocations, "_MOST_POINTS", 10)
    timeline = recorded(lambda: [ones() for _ in range(40)], {})
    assert len(timeline.points) <= 11
    assert max(held for _, held in timeline.points) == timeline.peak


def test_threads_are_counted() -> None:
    def code() -> None:
        kept: list[torch.Tensor] = []
        threads = [threading.Thread(target=lambda: kept.append(ones())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    timeline = recorded(code, {})
    assert (timeline.peak - timeline.before) / UNIT == 4
    assert timeline.after == timeline.before == usage.allocated


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_ends_the_recording_and_is_part_of_it(error: type[BaseException]) -> None:
    kept = []

    def code() -> None:
        kept.append(ones())
        raise error

    timeline = recorded(code, {})
    assert isinstance(timeline.error, error)
    assert (timeline.after - timeline.before) / UNIT == 1


def test_the_intermediate_values_of_a_program_are_named() -> None:
    @jaxtorch.pure(name="hungry")
    def hungry(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.T).sort().values.sum()

    x = ones(4)
    timeline = recorded(lambda: hungry(x), {})
    ((program, needs),) = timeline.programs
    assert program.name == "hungry"
    memory = program.memory()
    assert memory is not None
    assert needs == memory.temporary > UNIT
    assert recorded(lambda: x + 1, {}).programs == ()
