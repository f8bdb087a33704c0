"""Themes, narrow cells, screen readers, and the pages that have no script."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, expect

from .lab import frames
from .looks import faults_of_text
from .training import MARKUP, Training

AXE = Path(__file__).parents[2] / "widgets" / "js" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("cache", "hlo", "profile", "lines", "memory", "devices")


def faults(training: Training, name: str) -> list[str]:
    """What axe-core finds in a view that is serious or worse."""
    page = training.page
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE.read_text() + "; 0")
    training.of(name)
    found = page.evaluate(
        "async ([cell]) => (await axe.run(cell + ' .jaxtorch-view', {resultTypes: ['violations']})).violations",
        [f".jp-Cell[data-windowed-list-index='{training.number(name)}']"],
    )
    return [
        f"{v['id']}: {json.dumps([n['target'] for n in v['nodes']])[:300]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def luminance(view: Locator) -> float:
    colour = view.evaluate("e => getComputedStyle(e).backgroundColor")
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 765


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_every_view_follows_the_theme_and_axe_finds_no_serious_fault(
    training: Training, theme: str
) -> None:
    training.theme(theme)
    try:
        for name in VIEWS:
            view = training.of(name)
            expect(view).to_have_attribute("data-theme", theme.lower())
            frames(training.page)
            assert (luminance(view) < 0.3) == (theme == "Dark")
            assert faults(training, name) == []
            tabs = (
                view.get_by_role("tab").all() if theme == "Light" else []
            )  # the colours are the same in all
            for tab in tabs:
                tab.click()
                expect(tab).to_have_attribute("aria-selected", "true")
                frames(training.page)
                assert faults(training, name) == [], tab.inner_text()
    finally:
        training.theme("Light")


def test_a_narrow_cell_is_no_wider_than_its_page(training: Training) -> None:
    training.page.set_viewport_size({"width": 620, "height": 900})
    try:
        for name in VIEWS:
            view = training.of(name)
            wide = view.evaluate("""view => {
                const right = view.getBoundingClientRect().right;
                const hides = e => getComputedStyle(e).overflowX !== "visible";
                const clipped = e => e !== view && (hides(e) || clipped(e.parentElement));
                return [...view.querySelectorAll("*")]
                    .filter(e => e.getBoundingClientRect().right > right + 1 && !clipped(e))
                    .map(e => e.outerHTML.slice(0, 100));
            }""")
            assert wide == [], name
    finally:
        training.page.set_viewport_size({"width": 1280, "height": 1000})


@pytest.mark.parametrize("width", [900, 1280])
def test_no_text_overflows_its_box_or_breaks_within_a_word(training: Training, width: int) -> None:
    """A sample of `make pictures`, which looks at every tab of every view and at the notebooks: `scripts/sweep.py`."""
    training.page.set_viewport_size({"width": width, "height": 1000})
    try:
        for name in VIEWS:
            assert faults_of_text(training.of(name)) == [], name
    finally:
        training.page.set_viewport_size({"width": 1280, "height": 1000})


@pytest.mark.parametrize(
    ("html", "faults"),
    [
        ("<p style='width:200px'>all is well here</p>", []),
        ("<p style='width:50px;white-space:nowrap'>beyond its box</p>", ["overflows"]),
        ("<p style='width:50px;white-space:nowrap;overflow:auto'>beyond its box</p>", []),
        (
            "<p style='width:50px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis'>beyond its box</p>",
            [],
        ),
        ("<p style='width:60px;word-break:break-all'>one longword more words</p>", ["is broken"]),
        ("<p style='width:60px;overflow-wrap:anywhere'>muchtoolongforthisbox</p>", []),
        ("<details><p style='width:50px;white-space:nowrap'>beyond its box</p></details>", []),
    ],
)
def test_the_faults_of_a_text_are_found(browser: Browser, html: str, faults: list[str]) -> None:
    page = browser.new_page()
    page.set_content(f"<body style='font:16px monospace'>{html}</body>")
    found = faults_of_text(page.locator("body"))
    assert [fault.partition(":")[0] for fault in found] == faults
    page.close()


@pytest.fixture(scope="module")
def page_of(training: Training, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training notebook as `jupyter nbconvert --to html` makes it."""
    training.save()
    folder = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(folder)]
    subprocess.run([*command, str(training.file)], check=True, capture_output=True)
    return folder / "training.html"


def test_a_page_of_nbconvert_shows_every_view_without_a_script(
    browser: Browser, page_of: Path
) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(page_of.as_uri())
    text = page.inner_text("body")
    for words in ("eager", "logits = model(x)", "ENTRY", "loss.backward()", MARKUP):
        assert words in text
    assert "Loading widget" not in text
    assert "widget-view" not in page_of.read_text()
    outputs = page.locator(".jp-OutputArea-output")
    assert outputs.locator("script, img[src='x']").count() == 0
    context.close()
