"""`torch.Event("jax")` and `torch.Stream("jax")`, torch's own classes for every device.

Their methods query the device guard in C++. For a backend written in Python, it reports that events cannot be waited
for and that streams are always idle. A method cannot be added to the guard, because errors of XLA could not leave C++.
So the methods of both classes are replaced. For an event of this device they use an associated `torch.jax.Event`, for
a stream of this device the device itself, and otherwise torch's own method.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..base.replaced import replace_methods
from . import streams
from .streams import event_of

_record_of_torch = torch.Event.record


def _record(event: torch.Event, stream: torch.Stream | None = None) -> None:
    _record_of_torch(event, *([] if stream is None else [stream]))
    event_of(event).record(stream)


def _wait(event: torch.Event, stream: torch.Stream | None = None) -> None:
    event_of(event).wait(stream)


def _query(event: torch.Event) -> bool:
    return event_of(event).query()


def _synchronize(event: torch.Event) -> None:
    event_of(event).synchronize()


def _elapsed_time(event: torch.Event, end_event: torch.Event) -> float:
    return event_of(event).elapsed_time(event_of(end_event))


def _synchronize_stream(stream: torch.Stream) -> None:
    streams.synchronize()


def _query_stream(stream: torch.Stream) -> bool:
    return streams.default_stream().query()


def _record_event(stream: torch.Stream, event: torch.Event | None = None) -> torch.Event:
    event = torch.Event("jax") if event is None else event
    event.record(stream)
    return event


_METHODS: dict[type, dict[str, Callable[..., object]]] = {
    torch.Event: {
        "record": _record,
        "wait": _wait,
        "query": _query,
        "synchronize": _synchronize,
        "elapsed_time": _elapsed_time,
    },
    torch.Stream: {
        "synchronize": _synchronize_stream,
        "query": _query_stream,
        "record_event": _record_event,
    },
}


def _for_device(
    method: Callable[..., object], others: Callable[..., object]
) -> Callable[..., object]:
    """A method that calls another one for an event or a stream that is not of this device."""

    @functools.wraps(others, assigned=("__name__", "__qualname__", "__doc__"))
    def chosen(self: torch.Event | torch.Stream, *args: object, **kwargs: object) -> object:
        return (method if self.device.type == "jax" else others)(self, *args, **kwargs)

    return chosen


def install() -> None:
    """Make torch's events and streams of this device wait and measure. Call once."""
    for cls, ours in _METHODS.items():
        replace_methods(cls, {n: _for_device(m, vars(cls)[n]) for n, m in ours.items()})
