"""Running cells in a real shell, as a notebook does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
%jax on
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
images = torch.randn(5, 4)
labels = torch.tensor([0, 1, 2, 0, 1])
"""
LOSS = "%%pure\nlogits = model(images)\nloss = F.cross_entropy(logits, labels)"


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    """Assert that two tensors have the same values, wherever they are."""
    torch.testing.assert_close(one.detach().cpu(), other.detach().cpu())


def run(shell: Any, cell: str) -> Any:
    """Run a cell and return its value; an exception of the cell is the test's."""
    result = shell.run_cell(cell, store_history=False)
    result.raise_error()
    return result.result


def fails(shell: Any, capsys: Any, cell: str) -> str:
    """What a cell that fails shows; its namespace must be what it was."""
    before = dict(shell.user_ns)
    capsys.readouterr()
    result = shell.run_cell(cell, store_history=False)
    assert not result.success
    after = dict(shell.user_ns)
    assert before.keys() == after.keys()
    assert [n for n in after if after[n] is not before[n]] == []
    captured = capsys.readouterr()
    return str(captured.out + captured.err).strip()


def magic_output(shell: Any, capsys: Any, cell: str) -> str:
    """The line that a cell magic prints."""
    capsys.readouterr()
    run(shell, cell)
    lines = [n for n in capsys.readouterr().out.splitlines() if n.startswith(("pure:", "jit:"))]
    assert len(lines) == 1
    return str(lines[0])


@contextmanager
def pressing(seconds: float) -> Iterator[None]:
    """Ctrl-C after some seconds."""
    main = threading.main_thread().ident
    assert main is not None
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, old)
