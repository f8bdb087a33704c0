"""Every notebook and every view in JupyterLab, light and dark, at 900 and at 1280 pixels: `make pictures`.

Saves a picture of each into a folder, and reports text that overflows its box or breaks within a word. Notebooks are
opened as saved, without running them.

    python -m scripts.sweep build/pictures [NAME ...]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import BrowserContext, Locator, expect

from tests.browser.lab import RAN, Lab, settle
from tests.browser.looks import faults_of_text
from tests.browser.machines import Server, chromium, jupyter, offline
from tests.browser.training import CELLS, LATER, Training

ROOT = Path(__file__).parents[1]
WIDTHS = (900, 1280)
THEMES = ("Light", "Dark")
TALLEST = 16_000  # pixels: more than Chromium draws at once

# The cells of the tests' notebook, and the views that it does not have.
VIEWS = {name: cell for name, cell in CELLS.items() if name not in LATER} | {
    "diff": "%jax hlo train --diff",
    "status": "%jax status",
    "program_memory": "%jax memory train",
    "timeline": "%%jax memory\nfor size in (128, 512):\n    loss = F.cross_entropy(model(x[:size]), y[:size])\n"
    "    loss.backward()\n    optimizer.step()",
    "time": "%%jax time\nloss = train(x, y)",
    "hlo_cell": "%%jax hlo\nlogits = model(x)\nbest = logits.argmax(1)",
    "show": "%jax show {'weight': model[0].weight[:16, :32], 'model': model, 'labels': y}",
}
ERRORS = {
    "error": "model(torch.ones(5, 7))",
    "capture_error": "%%pure\nif x.sum() > 0:\n    z = x",
    "compile_error": "torch.compile(model, backend='jax')(torch.ones(5, 7))",
}


def sweep(folder: Path, names: list[str]) -> list[str]:
    """Take all pictures; returns the problems with texts."""
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    notebooks = work / "notebooks"
    notebooks.mkdir()
    with (
        jupyter(notebooks, work / "home") as server,
        chromium() as browser,
        offline(browser, server) as context,
    ):
        context.route("**/colab-badge.svg", lambda route: route.fulfill(body=""))
        faults = list(_views(context, server, folder)) if not names or "views" in names else []
        for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
            if not names or file.stem in names:
                shutil.copy(file, notebooks)
                faults += _notebook(context, server, notebooks / file.name, folder)
    return faults


def _views(context: BrowserContext, server: Server, folder: Path) -> Iterator[str]:
    notebook = Training(context.new_page(), server.address, server.folder, VIEWS | ERRORS, ERRORS)
    for name in ERRORS:
        notebook.run(notebook.number(name), wait=False)
        expect(notebook.cell(notebook.number(name)).locator(".jp-InputPrompt")).to_have_text(RAN)
    for theme in THEMES:
        notebook.theme(theme)
        for width in WIDTHS:
            notebook.page.set_viewport_size({"width": width, "height": 1300})
            for name in [n for n in notebook.cells if n not in ("set_up", "train", "others")]:
                shown = notebook.show(notebook.number(name))
                live = shown.locator(".jaxtorch-view").count()  # others have a saved form alone
                view = notebook.of(name) if live else _output(notebook, name)
                where = f"{name}_{theme.lower()}_{width}"
                view.screenshot(path=folder / f"{where}.png", animations="disabled")
                if name not in ERRORS:  # JupyterLab breaks those where the line ends
                    yield from (f"{where}: {fault}" for fault in faults_of_text(view))
                for tab in view.get_by_role("tab").all():
                    tab.click()
                    settle(view)
                    part = f"{where}_{tab.inner_text().split()[0].lower()}"
                    view.screenshot(path=folder / f"{part}.png", animations="disabled")
                    yield from (f"{part}: {fault}" for fault in faults_of_text(view))
    notebook.shut_down()


def _output(notebook: Training, name: str) -> Locator:
    area = notebook.cell(notebook.number(name)).locator(".jp-OutputArea-output").last
    area.scroll_into_view_if_needed()
    return area


def _notebook(context: BrowserContext, server: Server, file: Path, folder: Path) -> Iterator[str]:
    """A notebook as saved, marked as trusted in Jupyter so that it keeps its style."""
    page = context.new_page()
    notebook = Lab(page, server.address, file)
    page.evaluate("() => { window.jupyterapp.shell.collapseLeft(); }")
    page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets.forEach(c => c.model.trusted = true)"
    )
    for theme in THEMES:
        notebook.theme(theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": TALLEST})
            cells = page.locator(".jp-Notebook .jp-WindowedPanel-viewport").first
            settle(cells)
            where = f"{file.stem}_{theme.lower()}_{width}"
            cells.screenshot(path=folder / f"{where}.png", animations="disabled")
            # Views and prose. JupyterLab breaks the lines of printed text where they end.
            for part in page.locator(".jp-RenderedHTMLCommon").all():
                yield from (f"{where}: {fault}" for fault in faults_of_text(part))
    notebook.shut_down()
    page.close()


if __name__ == "__main__":
    wrong = sweep(Path(sys.argv[1]), sys.argv[2:])
    print("\n".join(dict.fromkeys(wrong)) or "No text overflows or is broken.")
    sys.exit(bool(wrong))
