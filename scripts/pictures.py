"""Pictures of the live views, from a real notebook in JupyterLab, into docs/images: `make pictures`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Locator

from tests.browser.lab import settle
from tests.browser.machines import chromium, jupyter, offline
from tests.browser.test_devices import SET_UP, labels
from tests.browser.test_hlo import START, line, panes
from tests.browser.training import CELLS, Training

SHOWN = {name: cell for name, cell in CELLS.items() if name not in ("others", "devices", "later")}
DEVICES = {
    "set_up": SET_UP,
    "devices": "%jax devices weight",
}  # these need eight devices, so another session
# These have no live form.
STILL = {
    "set_up": SHOWN["set_up"],
    "memory_timeline": """\
%%jax memory
for size in (128, 512):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x[:size]), y[:size])
    loss.backward()
    optimizer.step()
""",
    "show": "%jax show {'weight': model[0].weight[:16, :32], 'model': model, 'labels': y}",
}


def draw(folder: Path) -> None:
    """Take all pictures, in the light and in the dark theme."""
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp())
    (work / "notebooks").mkdir()
    with (
        jupyter(work / "notebooks", work / "home") as server,
        chromium() as browser,
        offline(browser, server) as context,
    ):
        for cells, arrange, found in (
            (SHOWN, arrange_training, Training.of),
            (DEVICES, arrange_devices, Training.of),
            (STILL, lambda notebook: None, output),
        ):
            page = context.new_page()
            page.set_viewport_size({"width": 1400, "height": 1300})
            notebook = Training(page, server.address, server.folder, cells)
            arrange(notebook)
            for theme in ("Light", "Dark"):
                notebook.theme(theme)
                for name in [n for n in cells if n not in ("set_up", "train")]:
                    view = found(notebook, name)
                    page.mouse.move(0, 0)
                    settle(view)
                    view.screenshot(
                        path=folder / f"{name}_{theme.lower()}.png", animations="disabled"
                    )
            notebook.shut_down()


def output(notebook: Training, name: str) -> Locator:
    """The output of a view without a live form."""
    area = notebook.cell(notebook.number(name)).locator(".jp-OutputArea-output").last
    area.scroll_into_view_if_needed()
    return area


def arrange_training(notebook: Training) -> None:
    """Select in each view what the picture should show."""
    hlo = notebook.of("hlo")
    line(panes(hlo)[0], "logits = model(x)").click(position=START)
    hlo.get_by_role("tab", name="Graph").click()
    profile = notebook.of("profile")
    profile.get_by_role("table", name="Time by line").get_by_role("button", name="model(x)").click()


def arrange_devices(notebook: Training) -> None:
    """Select one part of the array."""
    labels(notebook.of("devices")).nth(5).click()


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images"))
