"""A notebook in a real JupyterLab, driven by a headless Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect

RAN = re.compile(r"^\[\d+\]:$")  # the prompt of a cell that has run


def frames(page: Page, count: int = 20) -> None:
    """Let a page draw so many times: whatever follows from what was done has happened then."""
    page.evaluate(
        """count => new Promise(done => {
            const step = () => count-- ? requestAnimationFrame(step) : done();
            step();
        })""",
        count,
    )


_STILL = """e => new Promise(done => {
    const look = () => JSON.stringify(e.getBoundingClientRect());
    let seen = look(), left = 10;
    const step = () => {
        if (!e.isConnected) return done(false);
        if (look() !== seen) [seen, left] = [look(), 10];
        left-- ? requestAnimationFrame(step) : done(true);
    };
    step();
})"""


def settle(element: Locator) -> None:
    """Wait until an element stops moving: a notebook redraws cells that come into view, and moves others."""
    while not element.evaluate(_STILL):
        pass


def write(file: Path, cells: Iterable[str]) -> Path:
    """A notebook of these cells."""
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(made, file)
    return file


class Lab:
    """JupyterLab's page (or Notebook's, which is made of the same parts), showing one notebook.

    Attributes:
        page: Playwright's page.
        file: the notebook's file.
        errors: what went wrong in our drawing code, what the page's console logged, and every dialog.
    """

    path = "lab/tree/{}?reset"  # without what was open before

    def __init__(self, page: Page, address: str, file: Path):
        self.page = page
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self._error(error.stack or ""))
        page.on("console", lambda said: said.type == "error" and self._error(said.text))
        page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.file = file
        self.url = f"{address}/{self.path.format(file.name)}"
        self.open()

    def _error(self, text: str) -> None:
        """Ours alone: the drawing code is the one that is imported from memory, and widgets are nobody else's."""
        if re.search("blob:|widget|jaxtorch", text, re.IGNORECASE):
            self.errors.append(text)

    def open(self) -> None:
        """Load the page (again)."""
        self.page.goto(self.url)
        expect(self.page.locator(".jp-Notebook .jp-Cell").first).to_be_visible()
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.isReady"
        )

    def command(self, name: str, **arguments: Any) -> None:
        """One of JupyterLab's commands."""
        self.page.evaluate(
            "([name, args]) => { window.jupyterapp.commands.execute(name, args); }",
            [name, arguments],
        )

    def run(self, cell: int, wait: bool = True) -> Locator:
        """Run a cell; returns the place of its outputs."""
        self.page.evaluate(
            "(i) => { const n = window.jupyterapp.shell.currentWidget.content;"
            "n.activeCellIndex = i; n.mode = 'command'; }",
            cell,
        )
        self.command("notebook:run-cell")
        if wait:
            self.done(cell)
        return self.outputs(cell)

    def done(self, cell: int) -> None:
        """Wait until a cell has run."""
        prompt = self.cell(cell).locator(".jp-InputPrompt")
        expect(prompt).to_have_text(RAN)
        expect(self.outputs(cell).locator("[data-mime-type$='stderr']")).to_have_count(0)

    def show(self, cell: int) -> Locator:
        """Scroll a cell into sight; returns the place of its outputs."""
        self.page.evaluate(
            "i => window.jupyterapp.shell.currentWidget.content.scrollToItem(i, 'start')", cell
        )
        settle(self.outputs(cell))
        return self.outputs(cell)

    def cell(self, index: int) -> Locator:
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def outputs(self, cell: int) -> Locator:
        return self.cell(cell).locator(".jp-Cell-outputArea")

    def view(self, cell: int) -> Locator:
        """The live form in a cell's outputs (Playwright looks into shadows)."""
        found = self.outputs(cell).locator(".view")
        expect(found).to_be_visible()
        return found

    def save(self) -> dict[str, Any]:
        """Save; returns what is in the file."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")
        saved: dict[str, Any] = json.loads(self.file.read_text())
        return saved

    def restart(self) -> None:
        """Restart the kernel, as the menu does, without its question."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )

    def theme(self, name: str) -> None:
        """One of JupyterLab's themes, "Light" or "Dark"."""
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
            f"JupyterLab {name}",
        )
        light = str(name == "Light").lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    def shut_down(self) -> None:
        """End this notebook's kernel."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


class Notebook7(Lab):
    """Jupyter Notebook 7."""

    path = "notebooks/{}"
