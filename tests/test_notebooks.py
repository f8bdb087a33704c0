"""The notebooks teach: they show what happened, and check it in cells that a reader does not see."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
_TRUTH = re.compile(r"[\[(]?\s*(?:(?:True|False)\s*,?\s*)+[\])]?")
# What a reader imports of jaxtorch: names of the package itself, and of `jaxtorch.insight`.
_PUBLIC = {"jaxtorch", "jaxtorch.insight"}


@pytest.fixture(params=sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem[:2])
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, 4)


def cells(
    notebook: nbformat.NotebookNode, checks: bool
) -> Iterator[tuple[nbformat.NotebookNode, str]]:
    for cell in notebook.cells:
        if cell.cell_type == "code" and ("check" in cell.metadata.get("tags", ())) is checks:
            yield cell, cell.source


def code(source: str) -> ast.Module:
    """The Python of a cell, without magics."""
    return ast.parse(re.sub(r"^(\s*)(?:\w+ = )?%.*$", r"\1pass", source, flags=re.MULTILINE))


def test_no_output_is_a_bare_truth(notebook: nbformat.NotebookNode) -> None:
    for cell, source in cells(notebook, checks=False):
        for output in cell.outputs:
            text = output.get("data", {}).get("text/plain", "") or output.get("text", "")
            assert not _TRUTH.fullmatch("".join(text).strip()), source


def test_checks_are_in_cells_of_their_own_that_are_collapsed(
    notebook: nbformat.NotebookNode,
) -> None:
    for _, source in cells(notebook, checks=False):
        assert not [n for n in ast.walk(code(source)) if isinstance(n, ast.Assert)], source
    for cell, source in cells(notebook, checks=True):
        assert cell.metadata.jupyter.source_hidden
        assert cell.outputs == []
        assert "assert" in source


def test_readers_see_no_internals(notebook: nbformat.NotebookNode) -> None:
    for _, source in cells(notebook, checks=False):
        assert "run_cell_magic" not in source
        for node in ast.walk(code(source)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [m for m in modules if m.startswith("jaxtorch") and m not in _PUBLIC], source


def test_the_figures_of_this_test_find_what_they_look_for() -> None:
    for text in ("True", "(True, True)", "[True, False]", "(True,)"):
        assert _TRUTH.fullmatch(text)
    for text in ("(1, True)", "tensor([True, False], device='jax:0')", "Truely", ""):
        assert not _TRUTH.fullmatch(text)
