"""Whole models in cells: nearly all of the device's time belongs to a line of one of them."""

from __future__ import annotations

import pytest

from benchmarks.attribution import Model, gpt, in_cells, profiled, resnet18, session
from tests.insight.profile.code import adds_up

GPT, RESNET = gpt(), resnet18(width=8, batch=4, size=16)
# The other two ways of a ResNet-18: `python -m benchmarks attribution`.
STEPS = [(GPT, "eager"), (GPT, "%%pure"), (GPT, "%%jit"), (RESNET, "%%jit")]


@pytest.mark.parametrize(("model", "way"), STEPS, ids=lambda value: getattr(value, "name", value))
@pytest.mark.slow
def test_nine_tenths_of_a_step_belong_to_a_line_of_a_cell(model: Model, way: str) -> None:
    with session(model) as shell:
        profile = profiled(shell, model.ways[way])
    assert profile.recording.error is None
    adds_up(profile)
    assert in_cells(profile) >= 0.9
    # What was asked for, and not by chance the same line: the step's own, and those of the model's modules.
    assert len({row.location.cell for row in profile.lines if row.location is not None}) >= 2
