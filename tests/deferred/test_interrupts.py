"""Ctrl-C at any moment of recording, compiling or running a window: nothing is lost, no write happens twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from jaxtorch.deferred.switch import switch

from . import modes


@pytest.fixture
def handler() -> Iterator[None]:
    """Python's own handler."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.parametrize("mode", ["steps", "compiled", "random"])
def test_updates_survive_interrupts(handler: None, mode: str) -> None:
    with modes.deferred(mode):
        x = torch.zeros(64, device="jax")
        y = torch.zeros(4, 16, device="jax")
        main = threading.main_thread().ident
        assert main is not None

        def round_of_updates() -> None:
            x.add_(1)
            y[1].add_(1)
            (x * 2).sum()
            torch.rand(3, device="jax")
            switch.boundary()

        for _ in range(5):  # compile
            round_of_updates()
        interrupts, before = 0, 5.0
        for delay in range(1, 80):
            timer = threading.Timer(
                delay * 0.0003, lambda: signal.pthread_kill(main, signal.SIGINT)
            )
            rounds = 0
            try:
                timer.start()
                deadline = time.monotonic() + 5
                while time.monotonic() < deadline:
                    round_of_updates()
                    rounds += 1
            except KeyboardInterrupt:
                interrupts += 1
            timer.join()
            values, others = x.tolist(), y[1].tolist()
            assert len(set(values)) == 1
            assert len(set(others)) == 1
            assert values[0] - before in (rounds, rounds + 1), "each update happened once"
            before = values[0]
            assert torch.rand(2, device="jax").cpu().shape == (2,)
        assert interrupts >= 60
