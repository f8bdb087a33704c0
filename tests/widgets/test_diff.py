"""Two programs side by side: as text, as a page, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import torch

import jaxtorch
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.programs import programs
from jaxtorch.widgets.diff import DiffView

from .test_hlo import Tags


def chain(*functions: str) -> str:
    """One function after the other, a product between any two: nothing is the same but by name."""
    lines = [f"    x = torch.{name}(x) @ x" for name in functions]
    return "\n".join(["def f(x):", *lines, "    return x"])


@pytest.fixture(scope="module")
def readings() -> Iterator[tuple[Reading, Reading]]:
    kept, pair = [], []
    names = ["sin", "exp", "tanh", "sin", "exp", "tanh", "sin", "exp", "tanh", "sin"]
    for functions in (names, [*names[:5], "cos", *names[5:]]):
        namespace: dict[str, object] = {"torch": torch}
        exec(chain(*functions), namespace)
        captured = jaxtorch.pure(namespace["f"], name="chain")  # type: ignore[arg-type]  # it is a function
        with torch.no_grad():
            captured(torch.eye(8, device="jax"))
        kept.append(captured)
        pair.append(Reading([p for p in programs() if p.name == "chain"][-1]))
    yield pair[0], pair[1]
    del kept


def test_the_text_shows_the_difference_and_a_little_around_it(
    readings: tuple[Reading, Reading],
) -> None:
    lines = DiffView(*readings, "jaxpr").text().splitlines()
    added = [line for line in lines if line.startswith("+ ")]
    assert sum(" cos " in line for line in added) == 1
    changed = [line for line in lines if line[0] in "+-" and not line.startswith(("---", "+++"))]
    assert not any(re.search(r"= (sin|exp) ", line) for line in changed)
    # What reads the new value is a difference too: the tanh that comes next, and no other.
    assert [line[0] for line in changed if " tanh " in line] == ["-", "+"]
    assert len(lines) < len(readings[1].listing("jaxpr").lines) - 10
    assert any("⋯" in line for line in lines)
    one, two = (reading.program.id for reading in readings)
    assert lines[0].startswith(f"--- #{one} chain")
    assert lines[1].startswith(f"+++ #{two} chain")
    work = 2 * 8**3
    assert readings[1].costs.total.flops - readings[0].costs.total.flops == work


def test_the_page_has_both_sides(readings: tuple[Reading, Reading]) -> None:
    html = DiffView(*readings, "jaxpr").html()
    tags = Tags(html)
    assert not tags.seen & {"script", "img"}
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    sides = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows if "<td" in row]
    (right,) = [pair[1] for pair in sides if len(pair) == 2 and " cos " in pair[1]]
    assert right.startswith("+")
    assert not any(" cos " in pair[0] for pair in sides)
    for left, right in (pair for pair in sides if len(pair) == 2):
        assert not left or left[0] in "- "
        assert not right or right[0] in "+ "


def test_the_data_covers_both_texts(readings: tuple[Reading, Reading]) -> None:
    for stage in ("jaxpr", "stablehlo", "hlo"):
        data = json.loads(json.dumps(DiffView(*readings, stage).data()))
        first, second = (data[side]["text"].split("\n") for side in ("first", "second"))
        at = [0, 0]
        for same, i1, i2, j1, j2 in data["hunks"]:
            assert [i1, j1] == at
            assert not same or i2 - i1 == j2 - j1
            at = [i2, j2]
        assert at == [len(first), len(second)]
        assert "metadata=" not in data["first"]["text"] + data["second"]["text"]
        gone = sum(h[2] - h[1] for h in data["hunks"] if not h[0])
        come = sum(h[4] - h[3] for h in data["hunks"] if not h[0])
        assert f"{gone} lines removed, {come} added;" in data["summary"]
        assert len(second) - len(first) == come - gone
