"""What every notebook of the repository must be, besides running (nbval sees to that)."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_saved_as_it_ran_from_top_to_bottom(notebook: nbformat.NotebookNode) -> None:
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_no_cell_failed_or_warned(notebook: nbformat.NotebookNode) -> None:
    for cell in code(notebook):
        for output in cell.outputs:
            assert output.output_type != "error", output.get("evalue")
            assert output.get("name") != "stderr", output.text


def test_the_first_notebook_is_ordinary_pytorch_but_for_the_magics() -> None:
    source = "\n".join(cell.source for cell in code(nbformat.read(NOTEBOOKS[0], as_version=4)))
    assert set(re.findall(r"^%\w+", source, re.MULTILINE)) == {"%load_ext", "%jax"}
    assert not re.search(r"^\s*(import|from) (jax|jaxtorch)\b", source, re.MULTILINE)
