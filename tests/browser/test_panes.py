"""The panes of `%jax hlo`, over a program that is made up: lines that are longer than their pane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from jaxtorch.widgets.hlo import INFERRED
from jaxtorch.widgets.hlo_data import (
    CostRow,
    HloData,
    InstructionAnswer,
    SourceLine,
    SourceLines,
    SourceText,
    StageAnswer,
)
from jaxtorch.widgets.page import Fact, Facts, Page, Table, columns
from jaxtorch.widgets.protocol import Data, plain
from jaxtorch.widgets.view import View

from .lab import frames
from .test_frames import Frame

LONG = "    total = total + first_of_many(argument) * another_of_many(argument, and_one_more, and_the_last)"
SOURCE = ["def f(argument):", *[LONG] * 30, "    return total"]


GUESSED = 3  # a line of the program whose origin XLA did not record


class Linked(View):
    """Line n of the source is linked to line n of the program."""

    kind = "hlo"
    numbers = range(len(SOURCE))
    locations = SourceLines(
        [SourceText("f", "f", None, 1, SOURCE)], [SourceLine(0, n + 1) for n in numbers]
    )

    def text(self) -> str:
        return "linked"

    def html(self) -> str:
        return "<p>linked</p>"

    def data(self) -> Data:
        rows = [
            CostRow(
                id=n,
                line=f"{n + 1}  {SOURCE[n].strip()}",
                instructions=1,
                flops=1.0,
                share=None,
                transcendentals=1.0,
                bytes=1.0,
            )
            for n in self.numbers
        ]
        table = Table("lines", columns(CostRow, rows), rows, "By line", selects=True)
        page = Page("f", warnings=("one origin is inferred",), sections=(table,))
        data = HloData(
            self.locations.sources, self.locations.lines, page, "f", [], ["hlo"], "hlo", -1, ""
        )
        return dict(plain(data))

    def answer(self, ask: str, arguments: Mapping[str, Any]) -> object:
        if ask == "instruction":
            fact = Fact(
                "Origin", (INFERRED if arguments["name"] == f"add.{GUESSED}" else "recorded",)
            )
            return InstructionAnswer(arguments["name"], [], Facts((fact,)))
        text = "\n".join(f"  %add.{n} = f32[8]{{0}} add(%p, %add.{n - 1})" for n in self.numbers)
        groups, links = [[n] for n in self.numbers], list(self.numbers)
        known = self.locations
        return StageAnswer(known.sources, known.lines, "hlo", "HLO", text, groups, links, [GUESSED])


@pytest.fixture
def frame(context: BrowserContext) -> Iterator[Frame]:
    page = context.new_page()
    page.set_viewport_size({"width": 420, "height": 1000})
    frame = Frame(page, Linked(), dark=False)
    frame.flush(".side:nth-child(2) .cm-line")  # what the view asks for when it is drawn
    yield frame
    frame.connection.end()


@pytest.fixture
def view(frame: Frame) -> Locator:
    return frame.page.locator(".view")


def test_a_press_leaves_the_text_where_it_is(view: Locator) -> None:
    """A pane that scrolls to its line's start at the press, or a page that scrolls to the other pane, has another text
    under the mouse when it is let go, which selects: the next arrow key then only ends the selection."""
    source = view.locator(".side").nth(0)
    scroller = source.locator(".cm-scroller")
    scroller.evaluate("e => { e.scrollLeft = 200; e.scrollTop = 60; }")
    before = scroller.evaluate("e => [e.scrollLeft, e.scrollTop]")
    assert before == [200, 60]
    pane = scroller.bounding_box()
    assert pane is not None
    mouse = view.page.mouse
    mouse.move(pane["x"] + 200, pane["y"] + 100)
    mouse.down()
    linked = source.locator(".cm-linked")
    expect(linked).to_have_count(1)
    number = int(linked.evaluate("e => [...e.parentElement.children].indexOf(e)"))
    frames(view.page)
    assert scroller.evaluate("e => [e.scrollLeft, e.scrollTop]") == before
    assert view.page.evaluate("() => scrollY") == 0
    mouse.move(pane["x"] + 200, pane["y"] + 101)
    mouse.up()
    source.get_by_role("textbox").press("ArrowDown")
    lines = source.locator(".cm-line")
    expect(lines.nth(number + 1)).to_contain_class("cm-linked")
    expect(linked).to_have_count(1)


def test_a_link_that_is_inferred_is_marked_as_a_guess(frame: Frame, view: Locator) -> None:
    source, program = view.locator(".side").nth(0), view.locator(".side").nth(1)
    expect(view.locator(".notice")).to_have_text("one origin is inferred")
    view.get_by_role("tab", name="Instruction").click()
    for number, origin in ((GUESSED, INFERRED), (GUESSED + 1, "recorded")):
        program.locator(".cm-line").nth(number).click(position={"x": 30, "y": 8})
        expect(program.locator(".cm-linked")).to_have_count(1)
        expect(program.locator(".cm-guessed")).to_have_count(int(number == GUESSED))
        frame.flush(f".view dl:has-text('{origin}')")
    source.locator(".cm-line").nth(GUESSED).click(position={"x": 30, "y": 8})
    expect(program.locator(".cm-guessed")).to_have_count(1)
    expect(program.get_by_role("status")).to_contain_text("1 linked, 1 of them by inference")
