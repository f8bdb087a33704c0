"""The inputs of partitioned programs have the names of what they are, in every form of HLO and StableHLO."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.insight.programs import ProgramInfo, programs
from tests.capture.test_input_names import names_of

MESH = jaxtorch.mesh(8, "data")


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)).to("jax")


PARAMETERS = {f"{path}.{kind}" for path in (0, 2) for kind in ("weight", "bias")}


def compiled_by(run: Callable[[], object]) -> list[ProgramInfo]:
    """The programs of captured code that a call compiles."""
    first = programs()[-1].id if programs() else 0
    run()
    return [p for p in programs() if p.id > first and p.kind in ("pure", "jit")]


@pytest.mark.parametrize("strategy", [jaxtorch.fsdp, jaxtorch.data_parallel])
def test_a_forward_and_a_backward_program(strategy: Callable[..., nn.Module]) -> None:
    model = strategy(net(), MESH)
    captured = jaxtorch.pure(lambda x: model(x).sum())
    found = compiled_by(lambda: captured(torch.ones(16, 16, device="jax")).backward())
    names = {p.part: set(names_of(p)) for p in found}
    expected = {f"model.{name}" for name in PARAMETERS} | {"x"}
    assert names["saving"] >= expected
    assert names["backward"] >= {"grad_output", "residual.0"}


def test_a_training_step_and_its_text() -> None:
    model = jaxtorch.fsdp(net(), MESH)
    optimizer = torch.optim.Adam(model.parameters())

    @jaxtorch.jit
    def step(image: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.relu(model(image)).sum()
        loss.backward()
        optimizer.step()
        return loss

    image = torch.ones(16, 16, device="jax")
    (info,) = compiled_by(lambda: step(image))
    expected = {f"model.{name}" for name in PARAMETERS} | {"image"}
    assert set(names_of(info)) >= expected
    entry = step.lower(image).compile().as_text().partition("\nENTRY")[2]
    for name in expected:
        assert f"%{name} = " in entry
