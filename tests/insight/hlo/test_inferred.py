"""Instructions whose origin XLA drops: gradients of convolutions get the line of their convolution."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import jaxtorch
from jaxtorch.insight.hlo.inferred import infer_origins
from jaxtorch.insight.hlo.module import Instruction, Module
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.hlo.scopes import scope_of
from jaxtorch.insight.programs import ProgramInfo, programs

from .programs import of_text, run

SOURCE = """\
def f(x, a, b, c):
    x = F.conv2d(x, a, padding=1)
    x = torch.tanh(x)
    x = F.conv2d(x, b, padding=1)
    x = torch.sin(x)
    x = F.conv2d(x, c, padding=1)
    return x.square().sum()
"""
LINES = (2, 4, 6)  # of a, b, c
SIZE = 2, 4, 8, 8
ONE = 2 * 2 * 4 * 4 * (8 * 3 - 2) ** 2  # operations of one convolution, or of one gradient of it


def latest(name: str, part: str = "") -> ProgramInfo:
    return [p for p in programs() if p.name == name and p.part == part][-1]


def convolutions(module: Module) -> list[Instruction]:
    return [i for i in module.instructions.values() if i.opcode == "convolution"]


def source_of(module: Module, instruction: Instruction) -> Instruction:
    """The convolution behind copies and transposes."""
    while instruction.opcode != "convolution":
        instruction = module.instructions[instruction.operands[0]]
    return instruction


@pytest.fixture(scope="module")
def captured() -> Any:
    function = jaxtorch.pure(run(SOURCE, {"torch": torch, "F": F})["f"], name="convolved")
    x = torch.randn(SIZE, device="jax")
    weights = [torch.randn(4, 4, 3, 3, device="jax", requires_grad=True) for _ in "abc"]
    function(x, *weights).backward()
    return function


def test_the_gradient_of_each_kernel_has_the_line_of_its_convolution(captured: Any) -> None:
    reading = Reading(latest("convolved", "backward"))
    module = reading.module
    assert convolutions(module)
    assert module.inferred, "XLA keeps the origin of all: `inferred.py` may go"
    before = reading.listing("stablehlo")
    (returned,) = [line for line in before.lines if line.startswith("    return ")]
    expected = []
    for name in re.findall(r"%\w+", returned):  # the names of the results; XLA keeps their order
        (defined,) = [i for i, line in enumerate(before.lines) if line.startswith(f"    {name} = ")]
        (location,) = before.locations[defined]
        expected.append(location.line)
    assert sorted(expected) == list(LINES)
    root = module.instructions[module.entry.root]
    lines = []
    for number in root.operands:
        location = reading.sources.of(source_of(module, module.instructions[number]))
        lines.append(None if location is None else location.line)
    assert lines == expected


def test_each_line_has_the_work_of_its_gradients(captured: Any) -> None:
    """The first convolution has only the kernel's gradient, the others also have the input's."""
    reading = Reading(latest("convolved", "backward"))
    work = {r.location.line: r.cost.flops for r in reading.lines if r.location is not None}
    products = {line: round(work[line] / ONE) for line in LINES}
    assert products == {2: 1, 4: 2, 6: 2}
    assert None not in [r.location for r in reading.lines]


def test_the_forward_pass_is_as_xla_says(captured: Any) -> None:
    reading = Reading(latest("convolved", "saving"))
    module = reading.module
    lines = {p.line for i in convolutions(module) if (p := reading.sources.of(i)) is not None}
    assert lines == set(LINES)
    work = {r.location.line: r.cost.flops for r in reading.lines if r.location is not None}
    assert {line: round(work[line] / ONE) for line in LINES} == dict.fromkeys(LINES, 1)


def test_a_network_has_the_work_of_each_layer_by_its_path() -> None:
    model = torch.nn.Sequential(
        *[torch.nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(4)]
    )
    model = model.to("jax")
    function = jaxtorch.pure(lambda x: torch.tanh(model(x)).sum(), name="layered")
    function(torch.randn(SIZE, device="jax")).backward()
    reading = Reading(latest("layered", "backward"))
    work: dict[tuple[str, ...], float] = {}
    for instruction in convolutions(reading.module):
        scope = scope_of(instruction.op_name)
        assert scope.backward
        work[scope.path] = work.get(scope.path, 0) + reading.costs.of(instruction).flops
    assert work == {
        ("Sequential", "0"): ONE,
        ("Sequential", "1"): 2 * ONE,
        ("Sequential", "2"): 2 * ONE,
        ("Sequential", "3"): 2 * ONE,
    }


def test_a_copy_belongs_to_what_reads_it() -> None:
    module = of_text(
        """
        HloModule copied

        FileNames
        1 "/home/me/mine.py"

        FunctionNames
        1 "f"

        FileLocations
        1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=2}
        2 {file_name_id=1 function_name_id=1 line=8 end_line=8 column=1 end_column=2}

        StackFrames
        1 {file_location_id=1 parent_frame_id=1}
        2 {file_location_id=2 parent_frame_id=2}

        ENTRY main {
          p = f32[4,4] parameter(0)
          moved = f32[4,4] copy(p)
          turned = f32[4,4] transpose(moved), dimensions={1,0}
          first = f32[4,4] sine(turned), metadata={op_name="jit(f)/a/sin" stack_frame_id=1}
          second = f32[4,4] cosine(first), metadata={op_name="jit(f)/b/cos" stack_frame_id=2}
          last = f32[4,4] copy(second)
          ROOT out = (f32[4,4]) tuple(last)
        }
        """
    )

    def nothing() -> str:
        raise AssertionError("no product needs an origin: the text is not needed")

    inferred = infer_origins(module, nothing)
    lines = {
        i.name: inferred.stack(i.frame)[0].line if i.frame else None
        for i in inferred.entry.instructions
    }
    assert lines == {
        "p": None,
        "moved": 3,
        "turned": 3,
        "first": 3,
        "second": 8,
        "last": 8,
        "out": None,
    }
    assert {inferred.instructions[n].name for n in inferred.inferred} == {"moved", "turned", "last"}
    assert infer_origins(inferred, nothing) is inferred
