"""The documentation as a site, opened from the disk: the search finds, and views look as in a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the site's folder."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder.as_uri()


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """A page whose own files must all load. Files of other sites (Colab's badge) may be out of reach."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    missing: list[str] = []
    page.on("requestfailed", lambda request: missing.append(request.url))
    yield page
    assert not [url for url in missing if url.startswith("file:")]


def test_the_search_works_from_the_disk(page: Page, site: str) -> None:
    page.goto(f"{site}/tutorials/02_pure_cells.html")
    page.get_by_label("Search", exact=True).first.fill("sharding")
    expect(page.locator(".md-search-result__meta")).to_contain_text("matching documents")
    page.locator(".md-search-result__link").first.click()
    expect(page.locator("article")).to_contain_text("sharding")


@pytest.mark.parametrize("name", ["07_reading_hlo", "08_profile_a_training_step"])
def test_views_are_no_notes_and_show_their_code(page: Page, site: str, name: str) -> None:
    page.goto(f"{site}/tutorials/{name}.html")
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
