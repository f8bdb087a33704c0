"""Ctrl-C in a real kernel, as the notebook's stop button sends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel

BEGIN = """
%load_ext jaxtorch
import time, torch
import torch.nn.functional as F
%jax on
norm = torch.nn.BatchNorm1d(4)
x = torch.randn(5, 4)
norm(x), F.dropout(x)
"""


@pytest.fixture
def kernel() -> Iterator[Any]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


SLOW = """%%pure
mean = norm(x).mean()
label = "set by the cell"
while True:
    time.sleep(0.01)
"""
SEEN = """
import threading
ours = [t for t in threading.enumerate() if t.name == "jaxtorch-progress"]
for t in ours:
    t.join(30)
print([t for t in ours if t.is_alive()],
      norm.num_batches_tracked.item(), norm.running_mean.tolist() == before, "mean" in dir(), "label" in dir())
"""


@pytest.mark.slow
def test_while_the_line_of_a_long_compilation_shows(kernel: Any) -> None:
    """The line ends as a sentence, the tracing thread stops, and the cell has changed nothing."""
    manager, client = kernel
    execute(client, BEGIN + "before = norm.running_mean.tolist()")
    for _ in range(2):
        lines: list[str] = []  # as the output shows them, one in the place of the other

        def shown(message: Any, lines: list[str] = lines) -> None:
            if message["msg_type"] in ("display_data", "update_display_data"):
                lines.append(message["content"]["data"]["text/plain"])
                if len(lines) == 3:
                    manager.interrupt_kernel()

        reply = client.execute_interactive(
            SLOW, store_history=False, timeout=120, output_hook=shown
        )["content"]
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
        assert all(line.startswith("Compiling cell: tracing") for line in lines[:3])
        assert lines[-1].startswith("Stopped compiling cell after ")
        content, printed = execute(client, SEEN)
        assert content["status"] == "ok", content
        assert printed == "[] 1 True False False\n"


def execute(client: Any, code: str) -> Any:
    shown: list[str] = []
    reply = client.execute_interactive(
        code,
        store_history=False,
        timeout=120,
        output_hook=lambda m: shown.append(m["content"].get("text", "")),
    )
    return reply["content"], "".join(shown)


def test_the_stop_button(kernel: Any) -> None:
    manager, client = kernel
    content, _ = execute(client, BEGIN)
    assert content["status"] == "ok", content
    loops = ["while True: F.dropout(norm(x), 0.5)", "time.sleep(600)", "while True: pass"]
    for i, code in enumerate(loops * 4):
        timer = threading.Timer(0.3 + 0.01 * i, manager.interrupt_kernel)
        timer.start()
        started = time.monotonic()
        content, _ = execute(client, code)
        timer.join()
        assert content["status"] == "error", content
        assert content["ename"] == "KeyboardInterrupt"
        assert time.monotonic() - started < 60
        content, shown = execute(client, "print(norm(x).isfinite().all().item())")
        assert content["status"] == "ok", content
        assert shown == "True\n"


@pytest.mark.slow
def test_between_cells_the_kernel_ignores_it(kernel: Any) -> None:
    manager, client = kernel
    execute(client, BEGIN)
    for _ in range(3):
        manager.interrupt_kernel()
        time.sleep(0.3)
        content, shown = execute(client, "print(1)")
        assert (content["status"], shown) == ("ok", "1\n")
