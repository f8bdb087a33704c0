"""Thousands of mixed calls from several threads, in a process of its own, which ends itself if a call hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_mixed_calls_from_several_threads() -> None:
    program = [sys.executable, "-m", "benchmarks.soak_torch_call"]
    done = subprocess.run(
        [*program, "--calls", "4000", "--threads", "4", "--seed", "0"],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-6000:]
