"""VS Code and Colab put an output into a frame of its own and draw the widget that it names, by `render`.

Neither can be reached, so their part is played: a page that has nothing but the shell, as anywidget calls it, and a
model whose messages go to the kernel's side of a view in this process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from playwright.sync_api import BrowserContext, expect
from playwright.sync_api import Page as BrowserPage

from jaxtorch.widgets import live
from jaxtorch.widgets.page import Column, Page, Row, Table, columns
from jaxtorch.widgets.view import PageView, View

from .machines import PATIENCE

FRAME = """
async ([shell, hash]) => {
  const url = URL.createObjectURL(new Blob([shell], {type: "text/javascript"}));
  const module = await import(url);
  if (Object.keys(module).join() !== "default") throw new Error("anywidget wants the default export alone");
  const listeners = [];
  const model = {
    get: (name) => ({bundle: hash, view_id: "nowhere"})[name],
    send: (content) => void toKernel(content),
    on: (event, listener) => { if (event === "msg:custom") listeners.push(listener); },
  };
  window.fromKernel = (content, code) => {
    const buffers = code === null ? [] : [new DataView(new TextEncoder().encode(code).buffer)];
    for (const listener of [...listeners]) listener(content, buffers);
  };
  window.el = document.body.appendChild(document.createElement("div"));
  module.default.initialize({model, signal: new AbortController().signal});
  window.undo = module.default.render({model, el: window.el});
}
"""


@dataclass(frozen=True)
class NumberRow(Row):
    name: Annotated[str, Column("Name")]


class Numbers(PageView):
    seen = 0

    def revision(self) -> object:
        return self.seen

    def page(self) -> Page:
        rows = [NumberRow(id=1, name="one"), NumberRow(id=2, name="<b>two</b>")]
        table = Table("rows", columns(NumberRow, rows), rows, name="Numbers")
        return Page(f"Seen {self.seen}", sections=(table,))


class Frame:
    """A page as such a front end makes it for one output."""

    def __init__(self, page: BrowserPage, view: View, dark: bool):
        self.page = page
        self.view_id = "nowhere"
        self.connection = live.Connection(view, self)
        self._waiting: list[tuple[Any, Any]] = []
        page.expose_function("toKernel", self.receive)
        page.set_content(f"<html><body class='vscode-{'dark' if dark else 'light'}'></body></html>")
        page.evaluate(FRAME, [(live._STATIC / "shell.js").read_text(), live._drawing()[0]])

    def receive(self, content: Any) -> None:
        self.connection.receive(None, content, [])

    def send(self, content: Any, buffers: Any = None) -> None:
        """What a widget does, at the end of a cell where that is all that the front end shows."""
        self._waiting.append((content, buffers[0].decode() if buffers else None))

    def close(self) -> None:
        pass

    def flush(self, shows: str = ".view") -> None:
        """Bring messages from side to side until the page shows something."""
        wanted = self.page.locator(shows)
        deadline = time.monotonic() + PATIENCE / 1000
        while not wanted.count() or self._waiting:
            assert time.monotonic() < deadline, f"no {shows}"
            self.page.wait_for_timeout(20)  # the page's messages come in meanwhile
            while self._waiting:
                content, code = self._waiting.pop(0)
                self.page.evaluate(
                    "([content, code]) => fromKernel(content, code)", [content, code]
                )


@pytest.mark.parametrize("dark", [False, True])
def test_a_widget_in_a_frame_of_its_own(context: BrowserContext, dark: bool) -> None:
    view = Numbers()
    frame = Frame(context.new_page(), view, dark)
    frame.flush()
    shown = frame.page.locator(".view")
    expect(shown.locator("td.name")).to_have_text(["one", "<b>two</b>"])
    expect(shown).to_have_attribute("data-theme", "dark" if dark else "light")
    view.seen = 1
    frame.connection.look()
    frame.flush()
    expect(shown).to_contain_text("Seen 1")
    frame.connection.end()
    frame.page.evaluate("() => undo()")
    expect(shown).to_have_count(0)
