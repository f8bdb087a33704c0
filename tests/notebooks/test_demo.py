"""`make demo`'s script, on a small notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SCRIPT = Path(__file__).parents[2] / "scripts" / "demo.py"


def run(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    cells = [new_markdown_cell("# A title"), *(new_code_cell(source) for source in sources)]
    nbformat.write(new_notebook(cells=cells), folder / "small.ipynb")
    return subprocess.run(
        [sys.executable, SCRIPT, folder / "small.ipynb", folder / "pages"],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_line_for_each_cell_a_page_and_the_accuracy(tmp_path: Path) -> None:
    done = run(tmp_path, "x = 6", "print('Test accuracy: 97.0%')\nx * 7")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("[ 1/2] x = 6")
    assert lines[1].startswith("[ 2/2] print(")
    assert lines[-1] == "Test accuracy: 97.0%"
    page = (tmp_path / "pages" / "small.html").read_text()
    assert "A title" in page
    assert "42" in page


def test_a_cell_that_fails_is_one_line_and_the_page_has_the_rest(tmp_path: Path) -> None:
    done = run(tmp_path, "x = 6", "raise ValueError('no such digit')", "never = 1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "A cell failed: ValueError: no such digit"
    assert "no such digit" in (tmp_path / "pages" / "small.html").read_text()
