"""The panes of `%jax hlo`, over a program that is made up: lines that are longer than their pane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, expect

from jaxtorch.widgets.view import View

from .lab import frames
from .test_frames import Frame

LONG = "    total = total + first_of_many(argument) * another_of_many(argument, and_one_more, and_the_last)"
SOURCE = ["def f(argument):", *[LONG] * 30, "    return total"]


class Linked(View):
    """Line n of the source is linked to line n of the program."""

    kind = "hlo"

    def text(self) -> str:
        return "linked"

    def html(self) -> str:
        return "<p>linked</p>"

    def data(self) -> dict[str, Any]:
        numbers = range(len(SOURCE))
        table = ("instructions", "flops", "transcendentals", "bytes")
        return {
            "program": {"id": 1, "name": "f", "kind": "jit", "part": "", "title": "f"},
            "others": [],
            "sources": [{"file": "f", "title": "f", "cell": None, "first": 1, "lines": SOURCE}],
            "lines": [[0, n + 1] for n in numbers],
            "table": {"line": list(numbers), **{name: [1] * len(SOURCE) for name in table}},
            "total": [1, 0, 1],
            **{name: [] for name in ("kinds", "fusions", "buffers")},
            "memory": None,
            "stages": ["hlo"],
            "stage": "hlo",
            "line": -1,
            "grep": "",
        }

    def answer(self, ask: str, arguments: dict[str, Any]) -> Any:
        numbers = list(range(len(SOURCE)))
        text = "\n".join(f"  %add.{n} = f32[8]{{0}} add(%p, %add.{n - 1})" for n in numbers)
        links = {"groups": [[n] for n in numbers], "links": numbers}
        return self.data() | links | {"title": "HLO", "text": text}


@pytest.fixture
def view(context: BrowserContext) -> Iterator[Locator]:
    page = context.new_page()
    page.set_viewport_size({"width": 420, "height": 1000})
    frame = Frame(page, Linked(), dark=False)
    frame.flush(".side:nth-child(2) .cm-line")  # what the view asks for when it is drawn
    yield page.locator(".view")
    frame.connection.end()


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
