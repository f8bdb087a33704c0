"""Views whose kernel side is gone, and views in a notebook that nobody trusts."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab, frames
from .test_live import VIEW
from .training import CELLS, MARKUP, Training

STEP = """\
%load_ext jaxtorch
import jaxtorch, torch
@jaxtorch.pure
def twice(x):
    return x * 2
twice(torch.ones(3, device="jax"))
"""


def away_and_back(notebook: Lab, cell: int) -> Locator:
    """The view of a cell whose output was off the page for a while, as some notebooks do when it is out of sight."""
    location = notebook.outputs(cell)
    location.evaluate("e => { window.away = [e, e.parentNode]; e.remove(); }")
    frames(notebook.page)
    expect(notebook.cell(cell).locator(".view")).to_have_count(0)
    notebook.page.evaluate("() => { const [e, parent] = window.away; parent.append(e); }")
    return notebook.view(cell)


def test_an_unloaded_extension_leaves_its_views_as_they_were(lab: Callable[..., Lab]) -> None:
    cells = [STEP, "%jax cache", "%jax memory", "%unload_ext jaxtorch", "1 + 1"]
    notebook = lab(*cells, STEP, "%jax cache")
    for cell in range(5):
        notebook.run(cell)
        if cell in (1, 2):
            expect(notebook.view(cell)).to_have_attribute("data-life", "live")
    expect(notebook.outputs(4)).to_contain_text("2")
    for cell in (1, 2):
        view = away_and_back(notebook, cell)
        expect(view.get_by_role("status")).to_contain_text("no longer follows the session")
    view = notebook.view(1)
    view.get_by_role("button", name="Name").click()  # what needs no kernel still works
    expect(view.get_by_role("columnheader", name="Name")).to_have_attribute(
        "aria-sort", "ascending"
    )
    view.get_by_role("button", name="clear all").click()
    expect(view.get_by_role("alert")).to_contain_text("run its cell again")
    expect(view.locator("tbody td.name", has_text="twice")).to_be_visible()

    for cell in (5, 6):
        notebook.run(cell)
    expect(notebook.view(6)).to_have_attribute("data-life", "live")
    expect(notebook.view(6).locator("tbody td.name", has_text="twice").first).to_be_visible()


def test_a_view_of_a_kernel_that_is_gone_outlives_a_look_elsewhere(
    lab: Callable[..., Lab],
) -> None:
    notebook = lab(VIEW, "Rows()")
    for cell in range(2):
        notebook.run(cell)
    notebook.view(1)
    notebook.restart()
    expect(notebook.view(1).get_by_role("status")).to_contain_text("kernel is gone")
    view = away_and_back(notebook, 1)
    expect(view.get_by_role("status")).to_contain_text("kernel is gone")
    expect(view.locator("tbody tr")).to_have_count(3)


SHOWN = {
    "cache": "eager operators",
    "hlo": "logits = model(x)",
    "profile": "device busy",
    "lines": "b = a @ a",
    "memory": "arrays · peak",
    "devices": "x: float32[512, 64]",
}


@pytest.fixture
def untrusted(training: Training, lab: Callable[..., Lab]) -> Lab:
    """The training notebook as somebody else's: the signature by which Jupyter trusts it does not hold."""
    saved = training.save()
    trap = f"<img src=x onerror='window.ran = 1'><script>window.ran = 2</script>{MARKUP}"
    for cell in saved["cells"]:
        for output in cell["outputs"]:
            if "text/html" in output.get("data", {}):
                output["data"]["text/html"] = "".join([*output["data"]["text/html"], trap])
    file = training.file.with_name("untrusted.ipynb")
    file.write_text(json.dumps(saved))
    return lab(file=file)


def test_a_notebook_that_is_not_trusted_shows_the_pages_and_runs_nothing(untrusted: Lab) -> None:
    page = untrusted.page
    trusted = page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.trusted)"
    )
    assert not any(trusted)
    for name, words in SHOWN.items():
        location = untrusted.show(list(CELLS).index(name))
        expect(location.locator(".jaxtorch-view")).to_be_visible()
        expect(location.locator(".jaxtorch-view")).to_contain_text(words)
        assert location.locator(".jaxtorch-view").evaluate("e => e.shadowRoot") is None
        expect(location.locator("script, .view, [onerror]")).to_have_count(0)
    code = untrusted.show(list(CELLS).index("lines")).locator("pre").first
    expect(code).to_contain_text("   3  b = a @ a")
    timeline = untrusted.show(list(CELLS).index("profile")).locator(
        "details", has=page.locator("> summary", has_text="Timeline")
    )
    words = timeline.text_content() or ""
    assert (
        "shorter events" in words
    )  # of each lane its name and a note, and not the names of its events
    assert len(words) < 1500
    folded = untrusted.show(list(CELLS).index("cache")).locator(
        "details", has=page.locator("> summary", has_text="Programs of train")
    )
    table = folded.last.locator("table").first  # the inner one of two
    expect(table).not_to_be_visible()
    folded.last.locator("summary").first.click()
    expect(table).to_be_visible()
    expect(page.get_by_text("Loading widget")).to_have_count(0)
    assert page.evaluate("() => window.ran") is None
