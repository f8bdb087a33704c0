"""Two programs side by side: as text, as a page, as data."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator

import pytest
import torch

import jaxtorch
from jaxtorch.insight.hlo.diff import compare
from jaxtorch.insight.hlo.listing import Listing
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


def test_the_page_shows_what_the_text_shows(readings: tuple[Reading, Reading]) -> None:
    view = DiffView(*readings, "jaxpr")
    page = Tags(view.html())
    assert not page.seen & {"script", "img"}
    assert "pre" in page.seen  # keeps the indentation without style
    lines = re.findall(r"<pre.*?>(.*)</pre>", view.html(), re.DOTALL)[0].splitlines()
    shown = [html.unescape(re.sub(r"<.*?>", "", line)).rstrip() for line in lines[2:]]
    expected = [line.strip() if "⋯" in line else line for line in view.text().splitlines()[3:]]
    assert shown == expected
    coloured = [line for line in lines if "background" in line]
    assert len(coloured) == sum(line[0] in "+-" for line in shown)


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


def test_lines_that_differ_in_what_is_left_out_are_shown_whole() -> None:
    """As on two chips, whose instructions differ in the configuration alone."""
    line = '  ROOT %a = f32[] add(%b, %c), metadata={op_name="x"}, backend_config={"window":"N"}'
    texts = [Listing("hlo", (line.replace("N", n),), ((),), (None,)) for n in "12"]
    view = DiffView.__new__(DiffView)
    view.diff, view.stage = compare(*texts), "hlo"
    (hunk,) = view.diff.hunks
    assert not hunk.same
    removed, added = view._lines(hunk)
    assert removed == ['  ROOT %a = f32[] add(%b, %c), backend_config={"window":"1"}']
    assert added == ['  ROOT %a = f32[] add(%b, %c), backend_config={"window":"2"}']
