"""A sample of the other tests, run again in each mode of deferred execution. `make deferred` runs many more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from . import modes

SAMPLE = [
    "tests/storage/test_views.py",
    "tests/dispatch/test_hot_path.py",
    "tests/dispatch/test_memory.py",
]


@pytest.mark.parametrize("mode", modes.MODES)
@pytest.mark.skipif(modes.current != "immediate", reason="it runs inside itself")
@pytest.mark.sampled(1)
def test_a_sample_of_the_tests(mode: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *SAMPLE, "-q", "-p", "no:cacheprovider"],
        env=os.environ | {"JAXTORCH_DEFERRED": mode, "JAXTORCH_VIEW_PROGRAMS": "30"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
