"""Ctrl-C at any moment leaves tensors with their data: an in-place update has happened or it has not."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def pressed() -> Iterator[None]:
    """Python's own handler, and a thread that keeps pressing Ctrl-C every few milliseconds."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


def test_in_place_updates_survive_interrupts(pressed: None) -> None:
    x = torch.zeros(64, device="jax")
    y = torch.zeros(4, 16, device="jax")
    x.add_(1)
    y[1].add_(1)
    main = threading.main_thread().ident
    assert main is not None
    interrupts = 0
    for delay in range(1, 60):
        timer = threading.Timer(delay * 0.0003, lambda: signal.pthread_kill(main, signal.SIGINT))
        try:
            timer.start()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                x.add_(1)
                y[1].add_(1)
        except KeyboardInterrupt:
            interrupts += 1
        timer.join()
        # Reading raises where a donated array was lost; whole numbers show that no update was torn.
        assert len(set(x.tolist())) == 1
        assert len(set(y[1].tolist())) == 1
    assert interrupts >= 50
