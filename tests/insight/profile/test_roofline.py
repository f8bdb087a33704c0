"""The position of work under a device's roof."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest

import jaxtorch
from jaxtorch.insight.profile.roofline import Peak, peak_of, positions
from jaxtorch.insight.profile.summary import ProfileRow, Time
from jaxtorch.widgets.page import cell, columns
from jaxtorch.widgets.roofline import RoofRow, drawing, rows

PEAK = Peak("toy", 1000.0, 10.0)  # so that arithmetic is the limit from 100 operations a byte on


def row(name: str, flops: float, size: float, seconds: float) -> ProfileRow:
    return ProfileRow(name, Time(total=seconds * 1e9, flops=flops, bytes=size))


ROWS = [
    row("memory", 50.0, 10.0, 2.0),  # 5 a byte: at most 50 a second, and it did 25
    row("arithmetic", 4000.0, 10.0, 4.0),  # 400 a byte: at most 1000 a second, and it did that
    row("nothing", 0.0, 10.0, 8.0),
    row("in registers", 10.0, 0.0, 9.0),
]


def test_the_lower_of_two_limits_is_the_roof() -> None:
    arithmetic, memory = positions(ROWS, PEAK)  # most time first
    assert (arithmetic.row.name, memory.row.name) == ("arithmetic", "memory")
    assert (memory.intensity, memory.speed, memory.roof) == (5.0, 25.0, 50.0)
    assert (arithmetic.intensity, arithmetic.speed, arithmetic.roof) == (400.0, 1000.0, 1000.0)
    assert (memory.memory, arithmetic.memory) == (True, False)
    assert (memory.reached, arithmetic.reached) == (0.5, 1.0)


def shown(lines: list[ProfileRow], peak: Peak | None = PEAK) -> Any:
    """The attributes of a profile that the views read."""
    roofline = [] if peak is None else positions(lines, peak)
    return SimpleNamespace(peak=peak, roofline=roofline)


def test_the_table_says_what_limits() -> None:
    table = rows(shown(ROWS))
    columns_of = columns(RoofRow, table)[1:]
    assert [[cell(row, column) for column in columns_of] for row in table] == [
        ["400", "1.00 k", "100.0 %", "arithmetic", "arithmetic"],
        ["5", "25", "50.0 %", "memory", "memory"],
    ]


@pytest.mark.parametrize("intensity", [0.5, 5.0, 100.0, 3000.0])
def test_what_reaches_the_roof_is_drawn_on_it(intensity: float) -> None:
    """A point at a tenth of the roof is always the same distance below it."""
    lines = [
        row("on", PEAK.roof(intensity), PEAK.roof(intensity) / intensity, 1.0),
        row("below", PEAK.roof(intensity) / 10, PEAK.roof(intensity) / intensity / 10, 1.0),
        row("power", 1.0, 1.0, 1.0),
    ]
    page = drawing(shown(lines))
    match = re.search(r'points="([^"]*)"', page)
    assert match is not None
    roof = [tuple(map(float, point.split(","))) for point in match[1].split()]
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', page)
    assert box is not None
    width, height_of_box = map(int, box.groups())
    dot = r'left:([\d.]+)%;top:([\d.]+)%;transform:translate\(-50%,-50%\)"><i title="(\d)\. (\w+):'
    points = [(number, name, x, y) for x, y, number, name in re.findall(dot, page)]
    at = {
        name: (float(x) / 100 * width, float(y) / 100 * height_of_box) for _, name, x, y in points
    }

    def height(x: float) -> float:
        for (x0, y0), (x1, y1) in itertools.pairwise(roof):
            if x0 <= x <= x1:
                return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        raise AssertionError("outside of the roof")

    assert at["on"][1] == pytest.approx(height(at["on"][0]), abs=0.2)
    assert at["below"][0] == at["on"][0]
    assert at["below"][1] > at["on"][1] + 10
    numbers = {row.line: str(row.number) for row in rows(shown(lines))}
    assert {name: number for number, name, *_ in points} == numbers


def test_names_are_text() -> None:
    page = drawing(shown([row("<img src=x onerror=alert(1)>", 10.0, 1.0, 1.0)]))
    assert "<img" not in page
    assert "&lt;img" in page


def test_nothing_is_drawn_where_nothing_is_known() -> None:
    assert drawing(shown(ROWS, None)) == drawing(shown(ROWS[2:])) == ""


def test_a_peak_that_is_given_goes_before_one_that_is_known() -> None:
    assert peak_of("TPU v5 lite") == Peak("TPU v5 lite", 197e12, 819e9)
    assert peak_of() is None  # a CPU
    jaxtorch.config.update(peak=(1e12, 2e11))
    try:
        assert peak_of() == Peak("cpu", 1e12, 2e11)
        assert peak_of("TPU v5 lite") == Peak("TPU v5 lite", 197e12, 819e9)
    finally:
        jaxtorch.config.update(peak=None)
    assert peak_of() is None
