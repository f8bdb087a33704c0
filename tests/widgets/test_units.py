"""Numbers are written alike in Python and in the page: `widgets/js/test/drawing.test.ts` reads the same cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from jaxtorch.widgets.units import SCALES, Unit, written

JS = Path(__file__).parents[2] / "widgets" / "js"
CASES = json.loads((JS / "test" / "units.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['value']} {case['unit']}")
def test_a_value_is_written_in_its_unit(case: dict) -> None:
    assert written(case["value"], case["unit"]) == case["text"]


def test_every_scale_is_a_unit_that_has_cases() -> None:
    assert SCALES.keys() <= {case["unit"] for case in CASES} <= set(get_args(Unit))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_does_not_stop_a_view(value: float) -> None:
    assert written(value, "bytes").startswith(str(value))
