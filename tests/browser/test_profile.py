"""`%%jax profile` and `%%jax lines`, clicked through."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .lab import frames
from .training import LINES, Training


@pytest.fixture
def view(training: Training) -> Locator:
    view = training.of("profile")
    view.get_by_role("button", name="all", exact=True).first.click()
    return view


def sight(view: Locator) -> tuple[float, float]:
    """From when to when the timeline shows, when what was done to it is drawn."""
    frames(view.page)
    found = view.locator("canvas").evaluate("e => [e.dataset.from, e.dataset.to]")
    return float(found[0]), float(found[1])


def test_the_timeline_zooms_and_pans(view: Locator) -> None:
    canvas = view.locator("canvas")
    whole = sight(view)
    view.get_by_role("button", name="Zoom in").click()
    half = sight(view)
    assert half[1] - half[0] == pytest.approx((whole[1] - whole[0]) / 2)
    canvas.focus()
    canvas.press("ArrowRight")
    assert sight(view)[0] > half[0]
    box = canvas.bounding_box()
    assert box is not None
    mouse = view.page.mouse
    before = sight(view)
    shown = canvas.get_attribute("data-from") or ""
    mouse.move(box["x"] + 300, box["y"] + 10)
    mouse.wheel(0, -300)
    expect(canvas).not_to_have_attribute("data-from", shown)
    near = sight(view)
    assert near[1] - near[0] < before[1] - before[0]
    mouse.down()
    mouse.move(box["x"] + 400, box["y"] + 10, steps=4)
    mouse.up()
    assert sight(view)[0] < near[0]
    canvas.press("0")
    assert sight(view) == whole


def test_a_line_is_linked_to_its_instructions_and_an_event_to_its_line(view: Locator) -> None:
    rows = view.get_by_role("table", name="Time by line")
    view.get_by_role("tab", name="Line").click()
    rows.get_by_role("button", name="logits = model(x)").click()
    expect(rows.locator("tr[aria-selected='true']")).to_have_count(1)
    view.get_by_role("tab", name="Instruction").click()
    linked = view.get_by_role("table", name="Time by instruction").locator(
        "tr[aria-selected='true']"
    )
    expect(linked.first).to_be_attached()
    view.get_by_role("button", name="show all").click()
    expect(linked).to_have_count(0)
    view.get_by_role("tab", name="Line").click()
    canvas = view.locator("canvas")
    canvas.focus()
    for _ in range(3):
        canvas.press("n")
    expect(view.locator(".told")).to_contain_text(" at ")
    canvas.press("Escape")
    expect(view.locator(".told")).to_contain_text("in sight")


def test_a_selected_time_leaves_the_rows_that_ran_in_it(view: Locator) -> None:
    view.get_by_role("tab", name="Line").click()
    rows = view.get_by_role("table", name="Time by line").locator("tbody tr")
    every = rows.count()
    box = view.locator("canvas").bounding_box()
    assert box is not None
    mouse = view.page.mouse
    view.page.keyboard.down("Shift")
    mouse.move(box["x"] + 2, box["y"] + 10)
    mouse.down()
    mouse.move(box["x"] + 12, box["y"] + 10, steps=3)
    mouse.up()
    view.page.keyboard.up("Shift")
    expect(view.locator(".told")).to_contain_text("selected")
    expect(rows).not_to_have_count(every)
    assert rows.count() < every
    view.get_by_role("button", name="show all").click()
    expect(rows).to_have_count(every)


def test_the_flame_graph_has_the_modules_and_marks_one(view: Locator) -> None:
    view.get_by_role("tab", name="Flame graph").click()
    bar = view.get_by_role("button", name="Sequential: ")
    bar.click()
    expect(bar).to_have_attribute("aria-pressed", "true")
    expect(bar).to_contain_text(re.compile(r"Sequential\s+\d+\.\d %"))
    inner = [view.get_by_role("button", name=re.compile(f"^{i}: ")) for i in range(3)]
    outer = bar.bounding_box()
    assert outer is not None
    for one in inner:
        box = one.bounding_box()
        assert box is not None
        assert outer["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= outer["x"] + outer["width"] + 1
    view.get_by_role("button", name="backward", exact=True).click()
    expect(view.get_by_role("button", name="Sequential: ")).to_be_visible()


def test_a_module_is_linked_to_its_lines_and_its_operators(view: Locator) -> None:
    view.get_by_role("tab", name="Module").click()
    view.get_by_role("table", name="Time by module").get_by_role(
        "button", name="Sequential/0"
    ).click()
    view.get_by_role("tab", name="Line").click()
    linked = view.get_by_role("table", name="Time by line").locator("tr[aria-selected='true']")
    expect(linked.filter(has_text="logits = model(x)")).to_have_count(1)
    view.get_by_role("tab", name="Operator").click()
    rows = view.get_by_role("table", name="Time by operator")
    expect(rows.locator("tr[aria-selected='true']", has_text="dot_general")).to_have_count(1)
    view.get_by_role("button", name="show all").click()


def test_forward_and_backward_are_told_apart(view: Locator) -> None:
    view.get_by_role("tab", name="Flame graph").click()
    bar = view.locator(".flamebar", has_text="Sequential")
    share = bar.evaluate("e => parseFloat(e.style.getPropertyValue('--forward'))")
    assert 0 < share < 100
    for name, of in (("forward", 100), ("backward", 0)):
        view.get_by_role("button", name=name, exact=True).click()
        expect(bar).to_have_attribute("style", re.compile(f"--forward: {of}%"))
    view.get_by_role("button", name="all", exact=True).last.click()
    view.get_by_role("tab", name="Line").click()


def test_the_first_screen_has_finding_timeline_and_table(training: Training, view: Locator) -> None:
    page = training.page
    before = page.viewport_size
    page.set_viewport_size({"width": 900, "height": 700})
    training.command("application:toggle-left-area")
    try:
        view.get_by_role("tab", name="Line").click()
        view = training.of("profile")
        top = view.evaluate("e => e.getBoundingClientRect().top")
        expect(view.locator(".finding")).to_contain_text("of the device's time is")
        row = view.get_by_role("table", name="Time by line").locator("tbody tr").nth(1)
        assert row.evaluate("e => e.getBoundingClientRect().bottom") - top < 600
        table = view.get_by_role("table", name="Time by line").locator("..")
        assert table.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    finally:
        training.command("application:toggle-left-area")
        assert before is not None
        page.set_viewport_size(before)


@pytest.mark.parametrize(
    ("button", "begins"), [("Perfetto trace", '{"traceEvents"'), ("HTML page", "<!doctype html>")]
)
def test_a_profile_is_saved_from_the_page(
    training: Training, view: Locator, tmp_path: Path, button: str, begins: str
) -> None:
    with training.page.expect_download() as download:
        view.get_by_role("button", name=button).click()
    download.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_text().startswith(begins)


def test_lines_are_the_cells_and_the_slow_one_is_told(training: Training) -> None:
    view = training.of("lines")
    view.get_by_role("tab", name="In their order").click()
    texts = view.locator("tr[data-line] code.text").all_inner_texts()
    # The magic's line takes no time, nor does the one whose tensor is a transfer.
    assert [t.strip() for t in texts] == LINES.strip().split("\n")[2:]
    shares = {
        row.get_attribute("data-line"): next(
            (text for text in row.locator("td").all_inner_texts() if text.endswith("%")), ""
        )
        for row in view.locator("tr[data-line]").all()
    }
    slowest = max(shares, key=lambda n: float((shares[n] or "0").rstrip("%") or 0))
    assert slowest == str(LINES.split("\n").index("b = a @ a @ a @ a @ a @ a") + 1)
