"""An exception in code that torch's C++ calls reaches the user as on the CPU, and the next backward pass works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jaxtorch.device import guard

from .faults import CASES

_ROOT = Path(__file__).parents[2]


def test_an_exception_in_a_hook_is_an_exception() -> None:
    """Without `guard.switch_streams_in_cpp` the process ends in the first case: `terminate called`."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.device.faults"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])},
    )
    lines = done.stdout.splitlines()
    expected = [f"{case.__name__}-{raises.__name__}: same" for case, raises in CASES]
    assert lines == expected * 2, done.stderr[-2000:]
    assert done.returncode == 0


def test_streams_are_those_of_the_device_still() -> None:
    torch.ones(1, device="jax")
    assert guard.switch_streams_in_cpp(), "torch's header or its registry of guards has changed"
    stream = torch.Stream(device="jax")
    with stream:
        assert torch.accelerator.current_stream().device == torch.device("jax:0")
    torch.accelerator.set_stream(stream)
    assert torch.accelerator.current_stream().device == torch.device("jax:0")
    assert torch.accelerator.current_device_index() == 0


@pytest.mark.parametrize(
    ("header", "functions"),
    [
        ("struct A { virtual int f() const = 0; virtual ~A() = default; };", ["f", "~A"]),
        ("// virtual int no();\n/* virtual int no();\n */ virtual void g(int x) {}", ["g"]),
        ("virtual std::pair<A, B> h(\n  A /*unused*/) const noexcept {}", ["h"]),
        ("class virtually { int no(); };", []),
    ],
)
def test_virtual_functions_are_counted_in_a_header(header: str, functions: list[str]) -> None:
    assert guard.virtual_functions(header) == functions
