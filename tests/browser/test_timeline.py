"""A timeline of 100,000 events: what it draws, and how often, is counted in the page."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from .lab import Lab, frames

EVENTS = 100_000
LANES = 4

# Event i is in lane i % 4, from i to i + 0.9 µs, so that each lane has one every 4 µs; its name has its number.
PROFILE = """
from jaxtorch.widgets.view import View
N, LANES = 100_000, 4
time = dict(total=N * 900, backward=0, inferred=0, count=N, flops=0, bytes=0)
zeros, every = [0] * N, range(N)
class Profile(View):
    kind = "profile"
    def text(self): return "profile"
    def html(self): return "<p>profile</p>"
    def data(self):
        heading = dict(title="made up", facts=[], warnings=[], sections=[], actions=[], filter=None, filters="",
                       finding="")
        return dict(
            version=1, heading=heading, device=N * 900, peak=None, phases=[], omitted=0,
            categories=[dict(name="forward", colour="#3b7dd8")],
            lines=[
                dict(id=i, file="f", cell=1, line=i, source=f"line {i}", inclusive=N * 900, **time) for i in range(10)
            ],
            unattributed=dict(time, total=0), tree=dict(name="", self_time=0, children=[], **time),
            operators=[], instructions=[], names=[f"event {i}" for i in every], runs=[[0, N * 1000]],
            lanes=[dict(name=f"lane {i}", device=True) for i in range(LANES)],
            events=dict(start=[i * 1000 for i in every], duration=[900] * N, lane=[i % LANES for i in every],
                        name=list(every), depth=zeros, line=[i * 10 // N for i in every],
                        operator=[-1] * N, module=[-1] * N, instruction=[-1] * N, category=zeros))
Profile()
"""

# Counts, for each time that a canvas is painted (it is cleared first), the rectangles that are filled.
COUNTS = """() => {
    window.paints = [];
    const { clearRect, fillRect } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.clearRect = function (...box) {
        window.paints.push(0);
        clearRect.apply(this, box);
    };
    CanvasRenderingContext2D.prototype.fillRect = function (...box) {
        window.paints[window.paints.length - 1]++;
        fillRect.apply(this, box);
    };
}"""


def paints(page: Page) -> list[int]:
    """What was painted since the last time: how many rectangles in each picture."""
    frames(page)
    found: list[int] = page.evaluate("() => window.paints.splice(0)")
    return found


def sight(canvas: Locator) -> tuple[float, float]:
    """From when to when it shows, in microseconds."""
    frames(canvas.page)
    found = canvas.evaluate("e => [e.dataset.from * 1e6, e.dataset.to * 1e6]")
    return found[0], found[1]


def drawn(view: tuple[float, float]) -> int:
    """How many events are in a stretch of time."""
    first, last = view
    return sum(i + 0.9 >= first and i <= last for i in range(max(0, int(first) - 1), int(last) + 2))


@pytest.fixture
def view(lab: Callable[..., Lab]) -> Locator:
    notebook = lab(PROFILE)
    notebook.page.evaluate(COUNTS)
    notebook.run(0)
    return notebook.view(0)


def test_a_hundred_thousand_events(view: Locator) -> None:
    page, canvas = view.page, view.locator("canvas")
    told = view.locator(".told")
    expect(canvas).to_have_attribute("aria-label", re.compile(f"{EVENTS} events in {LANES} lanes"))
    box = canvas.bounding_box()
    assert box is not None
    pixels = round(box["width"]) * LANES
    whole = sight(canvas)
    assert whole == pytest.approx((0, EVENTS))  # the run
    opened = paints(page)
    assert 0 < len(opened) <= 6  # with each size that the view takes while it opens
    assert EVENTS / 100 < opened[-1] <= pixels + 10

    # Each step of zooming is one picture, and it shows the events of its range.
    canvas.focus()
    while (now := sight(canvas))[1] - now[0] > 200:
        paints(page)
        canvas.press("+")
        steps = paints(page)
        assert len(steps) == 1
        assert steps[0] <= pixels + 10
    paints(page)
    canvas.press("+")
    [count] = paints(page)
    assert count == drawn(sight(canvas))

    # A drag is at most a picture for each move, and moves by as much as the mouse.
    before = sight(canvas)
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 400, y)
    page.mouse.down()
    paints(page)
    moves = 25
    page.mouse.move(box["x"] + 150, y, steps=moves)
    page.mouse.up()
    assert 0 < len(paints(page)) <= moves + 2
    after = sight(canvas)
    length = before[1] - before[0]
    assert after[0] - before[0] == pytest.approx(250 / box["width"] * length)
    assert after[1] - after[0] == pytest.approx(length)

    # The event under the mouse is the one that is there, and a press chooses it, in the tables too.
    middle = (after[0] + after[1]) / 2
    number = round(middle) - round(middle) % LANES  # of the first lane
    x = (number + 0.45 - after[0]) / length * box["width"]
    page.mouse.click(box["x"] + x, box["y"] + 48)
    expect(told).to_contain_text(f"event {number} ·")
    rows = view.get_by_role("table", name="Time by line")
    chosen = rows.locator("tr[aria-selected='true']")
    expect(chosen).to_contain_text([f"line {number * 10 // EVENTS}"])
    canvas.press("n")
    page.mouse.move(0, 0)
    expect(told).to_contain_text(f"event {number + LANES} ·")

    # A stretch of all of it: the rows that ran in it, and no others.
    canvas.press("Escape")
    canvas.press("0")
    assert sight(canvas) == whole
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 0.42 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.57 * box["width"], y, steps=5)
    page.mouse.up()
    page.keyboard.up("Shift")
    expect(rows.locator("tbody tr")).to_have_count(2)
    expect(rows.locator("tbody td.name")).to_contain_text(["line 4", "line 5"])
