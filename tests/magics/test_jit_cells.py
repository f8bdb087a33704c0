"""`%%jit`: a training step in a cell does what it does without the magic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .cells import fails, magic_output, run

SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
%jax on
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
images = torch.randn(6, 4)
labels = torch.arange(6) % 3
optimizer = torch.optim.{}
average = [p.detach().clone() for p in model.parameters()]
"""
STEP = """
optimizer.zero_grad()
loss = F.cross_entropy(model(images), labels)
loss.backward()
norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
with torch.no_grad():
    for mean, p in zip(average, model.parameters()):
        mean.lerp_(p, 0.1)
loss
"""


@pytest.fixture
def shell(shell: Any) -> Iterator[Any]:
    yield shell
    run(shell, "%jax off")


@pytest.mark.parametrize(
    "optimizer",
    ["SGD(model.parameters(), lr=0.1, momentum=0.9)", "AdamW(model.parameters(), lr=0.01)"],
)
def test_a_training_step(shell: Any, capsys: Any, optimizer: str) -> None:
    def train(magic: str) -> list[torch.Tensor]:
        run(shell, SETUP.format(optimizer))
        run(shell, "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)")
        losses = []
        for _ in range(5):
            losses.append(run(shell, magic + STEP))
            run(shell, "scheduler.step()")
        names = shell.user_ns
        assert names["norm"].item() > 0
        return [
            *(loss.detach().cpu() for loss in losses),
            *(t.cpu() for t in names["model"].state_dict().values()),
            *(t.cpu() for t in names["average"]),
        ]

    expected, result = train(""), train("%%jit")
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    lines = [n for n in capsys.readouterr().out.splitlines() if n.startswith("jit:")]
    assert lines[0].startswith("jit: traced (1st")
    assert [n.startswith("jit: cached, 5 in, ") for n in lines[2:]] == [True] * 3


def test_the_second_trace_says_why(shell: Any, capsys: Any) -> None:
    dampened = "SGD(model.parameters(), lr=0.01, momentum=0.9, dampening=0.5)"
    run(shell, SETUP.format(dampened))
    magic_output(shell, capsys, "%%jit" + STEP)
    assert "tensors that its first run created are now inputs" in magic_output(
        shell, capsys, "%%jit" + STEP
    )
    assert magic_output(shell, capsys, "%%jit" + STEP).startswith("jit: cached")


def test_an_ordinary_step_is_traced_once(shell: Any, capsys: Any) -> None:
    run(shell, SETUP.format("AdamW(model.parameters(), lr=0.01)"))
    assert magic_output(shell, capsys, "%%jit" + STEP).startswith("jit: traced")
    assert magic_output(shell, capsys, "%%jit" + STEP).startswith("jit: cached")


def test_in_place_writes_are_written_back(shell: Any, capsys: Any) -> None:
    run(shell, "import torch\n%jax on\ntotal = torch.zeros(3)\nalias = total")
    for expected in (1.0, 2.0, 3.0):
        run(shell, "%%jit\ntotal += 1\nlast = total * 2")
        assert shell.user_ns["alias"].tolist() == [expected] * 3
        assert shell.user_ns["last"].tolist() == [2 * expected] * 3
    assert shell.user_ns["total"] is shell.user_ns["alias"]


def test_a_changed_setting_of_the_optimizer_is_seen(shell: Any) -> None:
    run(shell, SETUP.format("SGD(model.parameters(), lr=0.1)"))
    for _ in range(3):
        run(shell, "%%jit" + STEP)
    before = shell.user_ns["model"][3].weight.detach().clone()
    run(shell, "optimizer.param_groups[0]['lr'] = 0.0\n")
    run(shell, "%%jit" + STEP)
    assert torch.equal(shell.user_ns["model"][3].weight.cpu(), before.cpu())


def test_a_step_on_the_cpu_says_where_to_go(shell: Any, capsys: Any) -> None:
    run(shell, SETUP.format("SGD(model.parameters(), lr=0.1)").replace("%jax on", ""))
    shown = fails(shell, capsys, "%%jit" + STEP)
    assert "on the CPU" in shown
    assert ".jax()" in shown


def test_a_failed_step_changes_nothing(shell: Any, capsys: Any) -> None:
    run(shell, SETUP.format("SGD(model.parameters(), lr=0.1)"))
    model = shell.user_ns["model"]
    before = [t.tolist() for t in model.state_dict().values()]
    fails(shell, capsys, "%%jit" + STEP + "print(loss)")
    assert [t.tolist() for t in model.state_dict().values()] == before
    assert all(p.grad is None for p in model.parameters())
    assert shell.user_ns["optimizer"].state == {}
    assert "capturable" not in shell.user_ns["optimizer"].param_groups[0]
    run(shell, "%%jit" + STEP)
