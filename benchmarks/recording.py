"""The cost of observation: a call without recording, with recording, and with an open view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import jaxtorch
from jaxtorch.insight import events
from jaxtorch.widgets import live
from jaxtorch.widgets.cache import CacheView

from .harness import Row, compare


class Page:
    """A page that shows a view. It accepts everything that the kernel sends."""

    view_id = "benchmark"

    def send(self, content: Any, buffers: Any = None) -> None:
        """Discard the content, because this page draws nothing."""


class Looking:
    """Switches between the three states."""

    def __init__(self) -> None:
        self.connection = live.Connection(CacheView(), Page())

    def __call__(self, how: str) -> None:
        """`how`: "off", "recording" or "view open"."""
        (events.stop if how == "off" else events.start)()
        if how == "view open":
            self.connection.receive(None, {"v": live.VERSION, "type": "open"}, None)
        else:
            self.connection.receive(None, {"v": live.VERSION, "type": "close"}, None)


def rows() -> Iterator[Row]:
    """One row per kind of call."""
    x, y = (torch.randn(64, 64, device="jax") for _ in range(2))
    f = jaxtorch.pure(lambda a: a.sin())
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(10))).to("jax")
    g = jaxtorch.pure(model)

    def backward() -> None:
        g(x).sum().backward()

    def row(name: str, call: Callable[[], object], calls: int = 300) -> Row:
        ways = dict.fromkeys(("recording", "off", "view open"), call)
        return compare(
            name, ways, torch.jax.synchronize, calls, 51, 1.05, against="off", prepare=Looking()
        )

    def quietly(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return call()

        return run

    yield row("add", lambda: x + y)
    yield row("in place, with a number", lambda: x.mul_(1.0))
    yield row("pure, cached", quietly(lambda: f(x)))
    yield row("pure of 20 parameters, cached", quietly(lambda: g(x)))
    yield row("the same with its gradient", backward, 30)
    events.stop()
