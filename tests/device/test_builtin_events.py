"""torch's own `Event` and `Stream`, and the index of `torch.accelerator`, for this device and for others."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from jaxtorch.device import streams


class Work:
    """An array that is computed as soon as somebody waits for it, for so many seconds."""

    def __init__(self, seconds: float = 0.0, error: str = ""):
        self.seconds, self.error, self.done = seconds, error, False

    def is_deleted(self) -> bool:
        return False

    def is_ready(self) -> bool:
        return self.done

    def wait(self) -> None:
        time.sleep(0 if self.done else self.seconds)
        self.done = True
        if self.error:
            raise RuntimeError(self.error)


Start = Callable[..., Work]


@pytest.fixture(autouse=True)
def device() -> None:
    torch.jax.init()  # type: ignore[attr-defined]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """Gives the device work that is pending until somebody waits for it."""
    started: list[Work] = []
    monkeypatch.setattr(streams, "_pending", lambda: [w for w in started if not w.done])
    monkeypatch.setattr(streams, "_wait", Work.wait)

    def begin(**options: object) -> Work:
        started.append(Work(**options))  # type: ignore[arg-type]
        return started[-1]

    return begin


def recorded(make: Callable[[], torch.Event]) -> torch.Event:
    event = make()
    event.record()
    return event


WAITS: dict[str, Callable[[], object]] = {
    "Event": lambda: recorded(lambda: torch.Event("jax")).synchronize(),
    "timed Event": lambda: recorded(lambda: torch.Event("jax", enable_timing=True)).synchronize(),
    "Event of the accelerator": lambda: recorded(torch.Event).synchronize(),
    "Stream": lambda: torch.Stream("jax").synchronize(),
    "current stream": lambda: torch.accelerator.current_stream().synchronize(),
    "event of a stream": lambda: torch.accelerator.current_stream().record_event().synchronize(),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_waits(start: Start, name: str) -> None:
    work = start()
    assert not torch.Stream("jax").query()
    WAITS[name]()
    assert work.done
    assert torch.Stream("jax").query()


def test_a_recorded_event_is_done_when_the_work_before_it_is(start: Start) -> None:
    event = torch.Event("jax")
    assert event.query()
    before = start()
    event.record()
    after = start()
    assert not event.query()
    event.wait()
    event.synchronize()
    assert event.query()
    assert (before.done, after.done) == (True, False)


EVENTS: dict[str, Callable[[], torch.Event]] = {
    "torch's": lambda: torch.Event("jax", enable_timing=True),
    "torch.jax's": lambda: torch.jax.Event(enable_timing=True),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("first", EVENTS)
@pytest.mark.parametrize("last", EVENTS)
def test_events_measure_the_work_between_them(start: Start, first: str, last: str) -> None:
    one, other = EVENTS[first](), EVENTS[last]()
    one.record()
    one.synchronize()
    work = start(seconds=0.2)
    began = time.perf_counter()
    other.record()
    other.synchronize()
    wall = (time.perf_counter() - began) * 1e3
    assert work.done
    assert 190 < one.elapsed_time(other) < wall + 100
    assert other.elapsed_time(one) == -one.elapsed_time(other)


def test_a_time_that_was_not_asked_for_is_an_error() -> None:
    timed, plain = torch.Event("jax", enable_timing=True), torch.Event("jax")
    with pytest.raises(RuntimeError, match="recorded"):
        timed.elapsed_time(timed)
    timed.record()
    plain.record()
    with pytest.raises(RuntimeError, match="enable_timing"):
        timed.elapsed_time(plain)


def test_an_event_reports_that_the_work_failed(start: Start) -> None:
    start(error="planted")
    event = recorded(lambda: torch.Event("jax"))
    with pytest.raises(RuntimeError, match="planted"):
        event.synchronize()


def test_an_event_keeps_nothing_of_its_device_when_it_is_gone() -> None:
    before = len(streams._stand_ins)
    event = recorded(lambda: torch.Event("jax"))
    assert len(streams._stand_ins) == before + 1
    del event
    assert len(streams._stand_ins) == before


def test_events_of_other_devices_ask_torch(start: Start) -> None:
    work = start()
    with pytest.raises(RuntimeError, match="meta"):
        recorded(lambda: torch.Event("meta"))
    torch.Event("meta").synchronize()
    assert not work.done


INDEX: dict[str, Callable[[int], object]] = {
    "set_device_index": torch.accelerator.set_device_index,
    "device_index": lambda i: torch.accelerator.device_index(i).__enter__(),
    "synchronize": torch.accelerator.synchronize,
    "memory_stats": torch.accelerator.memory_stats,
    "get_memory_info": torch.accelerator.get_memory_info,
    "get_device_capability": torch.accelerator.get_device_capability,
}


@pytest.mark.parametrize("name", INDEX)
def test_an_index_that_torch_has_no_device_for_is_an_error(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"invalid device jax:99.*torch\.jax\.device"):
        INDEX[name](99)
    INDEX[name](0)
    assert torch.accelerator.current_device_index() == 0


def test_a_negative_index_changes_nothing() -> None:
    torch.accelerator.set_device_index(-1)
    assert torch.accelerator.current_device_index() == 0
