"""The documentation's site is built as `make docs` builds it: a broken link or an unknown name fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jaxtorch
from jaxtorch.magics.subcommands import SUBCOMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


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
