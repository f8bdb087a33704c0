"""A process is killed while `torch.save` writes: what was saved before is whole, and the next session works."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

_SAVES = """
import sys, torch
folder = sys.argv[1]
state = {"w": torch.arange(2.0 ** 22, device="jax"), "step": 7}
torch.save(state, folder + "/before.pt")
while True:
    torch.save(state, folder + "/now.pt")
"""


@pytest.mark.parametrize("moment", [0.0, 0.004, 0.011])
def test_what_was_saved_before_is_whole(tmp_path: Path, moment: float) -> None:
    child = subprocess.Popen([sys.executable, "-c", _SAVES, str(tmp_path)])
    now = tmp_path / "now.pt"
    try:
        limit = time.monotonic() + 120
        while not now.exists():
            assert child.poll() is None, "the child has ended by itself"
            assert time.monotonic() < limit
            time.sleep(0.001)
        time.sleep(moment)  # seconds after the first write began
    finally:
        child.kill()
        child.wait()
    before = torch.load(tmp_path / "before.pt")
    assert before["step"] == 7
    assert before["w"].device.type == "jax"
    assert torch.equal(before["w"], torch.arange(2.0**22, device="jax"))
    try:
        half = torch.load(now)
    except (RuntimeError, EOFError, OSError):  # as on the CPU, for a file that ends too early
        torch.save(before, now)
        half = torch.load(now)
    assert torch.equal(half["w"], before["w"])
