"""Threads and processes end cleanly: torch's dispatcher, which holds kernels, ends after the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from . import COMPILED

pytestmark = COMPILED

WORK = """
import gc, os, sys, threading, torch, jaxtorch
from jaxtorch.dispatch.operation import forget_programs
x = torch.ones(3, device="jax")
w = torch.ones(3, 3, device="jax", requires_grad=True)
def work():
    for _ in range(4):
        torch.nn.functional.linear(x, w).sum().backward()
        (x + x)[1:].sum()
work()
"""
ENDS = {
    "with tensors alive": "keep = [x + x, w.grad, x[1]]",
    "after programs were forgotten": "forget_programs(); work()",
    "with threads that ended": """
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
forget_programs()
[t.join() for t in threads]
forget_programs()
gc.collect()
""",
    "by an exception in a backward pass": """
z = x.clone().requires_grad_()
y = z * 2
y.register_hook(lambda g: 1 / 0)
try:
    y.sum().backward()
except ZeroDivisionError:
    work()
""",
    "with deferred calls that never ran": """
jaxtorch.config.update(execution="deferred")
work()
y = x + x
""",
    "in a module's dictionary": "sys.keep = [x + x, torch.ops.aten.add.Tensor]; gc.disable()",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", WORK + ENDS[name]],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
