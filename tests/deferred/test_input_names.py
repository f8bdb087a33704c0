"""The inputs of deferred calls have the names of the operator that takes them first, and of its argument."""

from __future__ import annotations

import pytest
import torch

from jaxtorch.deferred.switch import switch
from jaxtorch.insight.programs import programs

from ..capture.test_input_names import names_of


@pytest.mark.usefixtures("deferred")
def test_inputs_are_named_after_operator_and_argument() -> None:
    x, row = torch.ones(7, 23, device="jax"), torch.ones(29, 23, device="jax")
    first = programs()[-1].id
    results = []
    for _ in range(5):
        y = torch.add(x.sin(), row[0], alpha=2.5)
        for _ in range(4):
            y = (y * 0.5).cos()
        results.append(y)
        switch.boundary()
    info = next(p for p in programs() if p.id > first and p.name.endswith("deferred calls"))
    names = names_of(info)
    assert names[:2] == ["sin.self", "add.other"]
    assert set(names[2:]) <= {"floats", "view_starts"}
