"""The documentation's site, built as `make docs` builds it: a broken link or an unknown name fails.

Opened from the disk, the search finds, and views look as in a notebook.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

import jaxtorch
from jaxtorch.magics.subcommands import SUBCOMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose own files must all load. Files of other sites (Colab's badge) may be out of reach."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    missing: list[str] = []
    page.on("requestfailed", lambda request: missing.append(request.url))
    yield page
    assert not [url for url in missing if url.startswith("file:")]


def test_the_reference_has_every_public_name(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    modules = {"__version__", "insight"}
    names = [f"jaxtorch.{name}" for name in jaxtorch.__all__ if name not in modules]
    assert [name for name in names if name not in pages] == []


def test_the_page_of_the_magics_has_every_subcommand(site: Path) -> None:
    page = (site / "reference" / "magics.html").read_text()
    assert "{{" not in page.partition("<main")[2].partition("</main>")[0]
    assert [name for name in SUBCOMMANDS if f"jax {name}" not in page] == []


def test_every_notebook_is_a_tutorial(site: Path) -> None:
    index = (site / "index.html").read_text()
    notebooks = [path.stem for path in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in notebooks if f"tutorials/{name}.html" not in index] == []


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text()
        for tag in ('<script src="http', '<link rel="stylesheet" href="http', 'src="//'):
            assert tag not in text, (page, tag)


def test_the_search_works_from_the_disk(page: Page, site: Path) -> None:
    page.goto(f"{site.as_uri()}/tutorials/02_pure_cells.html")
    page.get_by_label("Search", exact=True).first.fill("sharding")
    expect(page.locator(".md-search-result__meta")).to_contain_text("matching documents")
    page.locator(".md-search-result__link").first.click()
    expect(page.locator("article")).to_contain_text("sharding")


@pytest.mark.parametrize("name", ["07_reading_hlo", "08_profile_a_training_step"])
def test_views_are_no_notes_and_show_their_code(page: Page, site: Path, name: str) -> None:
    page.goto(f"{site.as_uri()}/tutorials/{name}.html")
    assert page.locator(".jp-OutputArea-output details").count() > 3
    odd = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output details')].filter(e => {
            const icon = getComputedStyle(e.querySelector('summary'), '::before').display;
            return parseFloat(getComputedStyle(e).borderLeftWidth) > 0 || icon !== 'none';
        }).length"""
    )
    assert odd == 0
    hidden = page.evaluate(
        """() => [...document.querySelectorAll('.jp-OutputArea-output td[style*="white-space:pre"]')].filter(e => {
            const output = e.closest('.jp-OutputArea-output').getBoundingClientRect();
            const code = e.getBoundingClientRect();
            return code.width && code.left > output.left + 0.8 * output.width;
        }).length"""
    )
    assert hidden == 0
