"""A process may end while XLA still computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Reductions of a batch run in parts of XLA that fail once the process has begun to end.
_MODEL = """
import torch, jaxtorch
from torch import nn
net = nn.Sequential(*[nn.BatchNorm2d(64) for _ in range(16)]).to("jax")
x = torch.randn(32, 64, 64, 64, device="jax")
def step(x):
    net.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return loss
"""
_ENDS = [
    pytest.param("loss = step(x)", id="eager"),
    pytest.param("jaxtorch.jit(step)(x)", id="jit", marks=pytest.mark.slow),
    pytest.param(
        "loss = jaxtorch.jit(step)(x)\nraise SystemExit(0)", id="an error", marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize("end", _ENDS)
def test_a_process_that_ends_while_xla_computes(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", _MODEL + end], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
