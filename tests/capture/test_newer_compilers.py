"""Programs that libtpu makes and this jaxlib cannot read: asynchronous collectives of sparse cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn

import jaxtorch
from jaxtorch.capture.lowering import Lowered
from jaxtorch.capture.tpu import shared_compiler
from jaxtorch.insight.hlo.module import read_module
from tests.libtpu import needs_libtpu

pytestmark = [needs_libtpu, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def _one_compiler() -> Iterator[None]:
    with shared_compiler():
        yield


def _step(target: str, chips: int) -> Lowered:
    """A training step whose weights are divided and gathered for each layer."""
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(jaxtorch.with_sharding_constraint(x, P("data"))).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.empty(chips * 8, 4096, device="meta")
    rules = {"x": P("data"), "*.weight": P("data")}
    return step.lower(x, target=target, mesh={"data": chips}, shardings=rules)


@pytest.mark.parametrize(("target", "chips"), [("tpu7x:2x2x1", 8), ("v5p:2x2x1", 4)])
def test_programs_of_several_chips_are_read(target: str, chips: int) -> None:
    executable = _step(target, chips).compile()
    module = read_module(executable.hlo_proto)
    opcodes = {i.opcode for i in module.instructions.values()}
    assert any("all-gather" in i.name for i in module.instructions.values())
    assert opcodes & {"all-gather", "all-gather-start", "async-start"}
    assert "all-gather" in executable.hlo
    # The text and the serialized form are one program.
    for instruction in module.with_input_names().entry.instructions:
        assert f"{instruction.name} = " in executable.hlo
    report = jaxtorch.fit(executable)
    assert report.fits
    assert report.time is not None
    parameters = 3 * 4096 * 4096 * 4 / chips
    assert report.memory[[m.kind for m in report.memory].index("parameters")].bytes == parameters


def test_the_second_program_of_a_process_is_read_too() -> None:
    """libtpu numbers the modules of a process: the second program was looked for under the number of the first."""
    first, second = (_step("tpu7x:2x2x1", 8).compile() for _ in range(2))
    assert "all-gather" in second.hlo
    modules = [read_module(executable.hlo_proto) for executable in (first, second)]
    names = [[i.name for i in module.entry.instructions] for module in modules]
    assert names[0] == names[1]
