"""`%jax hlo`, clicked through: from a line to its instructions and back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Position, expect

from .training import TRAIN, Training

START: Position = {"x": 30, "y": 8}  # of a line, which may be longer than its pane
ENTRY = re.compile(r"^ENTRY ")
FORWARD = "    logits = model(x)"


def panes(view: Locator) -> tuple[Locator, Locator]:
    """The source and the program."""
    return view.locator(".side").nth(0), view.locator(".side").nth(1)


def line(pane: Locator, text: str) -> Locator:
    return pane.locator(".cm-line", has_text=text).first


@pytest.fixture
def view(training: Training) -> Locator:
    view = training.of("hlo")
    view.get_by_role("tab", name="Optimized HLO").click()
    expect(panes(view)[1].get_by_role("textbox", name="Optimized HLO of")).to_be_visible()
    return view


def test_the_source_is_the_cells(view: Locator) -> None:
    source, _ = panes(view)
    texts = [text.strip("\n") for text in source.locator(".cm-line").all_inner_texts()]
    assert texts == TRAIN.rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("stage", "operation"),
    [("jaxpr", "dot_general"), ("StableHLO", "dot_general"), ("Optimized HLO", "dot(")],
)
def test_a_line_marks_what_became_of_it_and_back(view: Locator, stage: str, operation: str) -> None:
    source, program = panes(view)
    view.get_by_role("tab", name=stage).click()
    line(source, "logits = model(x)").click()
    marked = program.locator(".cm-linked")
    expect(marked.first).to_be_visible()
    expect(source.locator(".cm-linked")).to_have_text([FORWARD])
    # The forward pass of this model is a product: it is among what is marked, wherever that is.
    find(view, operation)
    product = program.locator(".cm-linked", has_text=operation).first
    line(source, "optimizer.zero_grad").click()
    expect(marked).to_have_count(0)
    find(view, operation)
    program.locator(".cm-line", has_text=operation).first.click(position=START)
    expect(product).to_be_visible()
    expect(source.locator(".cm-linked")).to_have_count(1)


def find(view: Locator, word: str) -> None:
    """Search the program; the first hit comes into sight."""
    _, program = panes(view)
    program.get_by_role("button", name="search").click()
    box = program.locator(".cm-search input[name='search']")
    box.clear()
    box.press_sequentially(word)
    box.press("Enter")
    box.press("Escape")
    expect(program.locator(".cm-line", has_text=word).first).to_be_visible()


def test_the_keyboard_goes_from_line_to_line(view: Locator) -> None:
    source, _ = panes(view)
    line(source, "logits = model(x)").click(position=START)
    editor = source.get_by_role("textbox")
    editor.press("ArrowDown")
    expect(source.locator(".cm-linked")).to_have_text(["    loss = F.cross_entropy(logits, y)"])
    editor.press("ArrowDown")  # `loss.backward()`: the work is at the lines that it differentiates
    editor.press("ArrowDown")
    expect(source.locator(".cm-linked")).to_have_text(["    optimizer.step()"])


def test_a_row_of_the_costs_marks_its_line(view: Locator) -> None:
    view.get_by_role("tab", name="By line").click()
    rows = view.get_by_role("table", name="Cost by line")
    rows.get_by_role("button", name="optimizer.step()").click()
    expect(panes(view)[0].locator(".cm-linked")).to_have_text(["    optimizer.step()"])
    expect(rows.locator("tr[aria-selected='true']")).to_have_count(1)


def test_a_computation_folds(view: Locator) -> None:
    _, program = panes(view)
    find(view, "ENTRY ")
    before = program.locator(".cm-foldPlaceholder").count()
    program.locator(".cm-line").filter(has_text=ENTRY).click(position=START)
    program.get_by_role("textbox").press("Control+Shift+BracketLeft")
    expect(program.locator(".cm-foldPlaceholder")).to_have_count(before + 1)
    program.get_by_role("textbox").press("Control+Shift+BracketRight")
    expect(program.locator(".cm-foldPlaceholder")).to_have_count(before)


def test_a_program_is_copied_and_downloaded_whole(
    training: Training, view: Locator, tmp_path: Path
) -> None:
    _, program = panes(view)
    program.get_by_role("button", name="copy").click()
    copied = training.page.evaluate("() => navigator.clipboard.readText()")
    with training.page.expect_download() as download:
        program.get_by_role("button", name="download").click()
    download.value.save_as(tmp_path / "program")
    saved = (tmp_path / "program").read_text()
    for text in (copied, saved):
        assert text.startswith("HloModule ")
        assert "\nENTRY " in text
    assert len(saved.splitlines()) >= len(copied.splitlines())


def test_the_graph_goes_from_the_whole_to_an_instruction_and_on(view: Locator) -> None:
    _, program = panes(view)
    view.get_by_role("tab", name="Graph").click()
    view.get_by_role("button", name="whole, by module").click()
    expect(view.locator("g.node", has_text="Sequential").first).to_be_visible()
    find(view, " dot(")
    program.locator(".cm-line", has_text=" dot(").first.click(position=START)
    view.get_by_role("button", name="around").click()
    at = view.locator("g.node[aria-pressed='true']")
    expect(at).to_contain_text("dot")
    name = at.locator("text").first.text_content()
    other = view.locator("g.node[aria-pressed='false']").first
    label = other.locator("text").first.text_content()
    other.press("Enter")
    expect(view.locator("g.node[aria-pressed='true'] text").first).to_have_text(label)
    assert label != name


def test_two_versions_of_one_function_are_compared(view: Locator) -> None:
    view.get_by_role("tab", name="Diff").click()
    _, program = panes(view)
    expect(program.get_by_role("status")).to_contain_text("added")
    expect(program.locator("td.removed", has_text="f32[512,64]").first).to_be_attached()
    expect(program.locator("td.added", has_text="f32[256,64]").first).to_be_attached()
    same = program.get_by_role("button", name="equal lines").first
    rows = program.locator("table.compared tbody tr")
    before = rows.count()
    same.click()
    expect(rows).not_to_have_count(before)
    assert rows.count() > before


def test_lines_and_instructions_have_one_colour(view: Locator) -> None:
    """Before anything is pressed, and after: an instruction has that of its line."""
    source, program = panes(view)
    hue = "e => e.style.getPropertyValue('--hue').trim()"
    lines = {
        text: line(source, text).evaluate(hue)
        for text in ("logits = model(x)", "cross_entropy", "optimizer.step()")
    }
    assert len({*lines.values()} - {""}) == 3
    assert line(source, "optimizer.zero_grad()").evaluate(hue) == ""
    find(view, " dot(")
    product = program.locator(".cm-line", has_text=" dot(").first
    assert product.evaluate(hue) == lines["logits = model(x)"]
    line(source, "optimizer.step()").click(position=START)
    expect(source.locator(".cm-linked")).to_have_text(["    optimizer.step()"])
    first = program.locator(".cm-linked.cm-tinted").first
    expect(first).to_be_visible()
    assert line(source, "logits = model(x)").evaluate(hue) == lines["logits = model(x)"]


def test_attributes_are_folded_until_they_are_pressed_or_searched(view: Locator) -> None:
    _, program = panes(view)
    find(view, "ENTRY ")
    parameter = program.locator(".cm-line", has_text="parameter(0)").last
    expect(parameter.locator(".cm-attributes")).to_have_count(1)
    expect(parameter).not_to_contain_text("metadata")
    assert "metadata=" in (parameter.locator(".cm-attributes").get_attribute("title") or "")
    parameter.locator(".cm-attributes").click()
    expect(parameter).to_contain_text("metadata={")
    button = program.get_by_role("button", name="attributes")
    button.click()
    expect(program.locator(".cm-attributes")).to_have_count(0)
    button.click()
    expect(parameter).not_to_contain_text("metadata")
    find(view, "op_name")
    expect(program.locator(".cm-line", has_text="op_name").first).to_be_visible()


def test_both_panes_are_as_high_and_the_figures_have_a_heading(view: Locator) -> None:
    source, program = (pane.locator(".code").last.bounding_box() for pane in panes(view))
    assert source is not None
    assert program is not None
    assert source["y"] + source["height"] == pytest.approx(program["y"] + program["height"], abs=2)
    assert source["height"] == pytest.approx(program["height"], abs=40)
    expect(panes(view)[0].locator(".notes")).to_have_text("FLOPs")


def test_the_graph_is_dragged_and_zoomed(training: Training, view: Locator) -> None:
    view.get_by_role("tab", name="Graph").click()
    view.get_by_role("button", name="whole, by module").click()
    map = view.get_by_role("region", name="The program by module")
    map.scroll_into_view_if_needed()
    drawing = map.locator("g.drawing")
    expect(drawing).to_be_visible()
    place = map.bounding_box()
    assert place is not None
    view.get_by_role("button", name="fit").click()
    seen = [drawing.get_attribute("transform")]

    def moved() -> None:
        expect(drawing).not_to_have_attribute("transform", str(seen[-1]))
        seen.append(drawing.get_attribute("transform"))

    mouse = training.page.mouse
    mouse.move(place["x"] + 12, place["y"] + place["height"] - 12)
    mouse.down()
    mouse.move(place["x"] + 60, place["y"] + place["height"] - 30, steps=4)
    mouse.up()
    moved()
    view.get_by_role("button", name="Zoom in").click()
    moved()
    map.press("-")
    moved()
    map.press("0")
    moved()
    assert seen[-1] == seen[0]
