"""Tests of sharded tensors, each file in a process of its own with 8 simulated devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(p for p in Path(__file__).with_name("on_8_devices").glob("*.py") if p.stem[0] != "_")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.sampled(1)
def test_with_8_devices(file: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            str(file),
        ],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
