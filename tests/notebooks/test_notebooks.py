"""What every notebook of the repository must be, besides running (nbval sees to that)."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from scripts import wheel

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
    """Except those that show an error."""
    for cell in code(notebook):
        shown = [o.get("evalue") for o in cell.outputs if o.output_type == "error"]
        assert bool(shown) == ("raises-exception" in cell.metadata.get("tags", ())), shown
        for output in cell.outputs:
            assert output.get("name") != "stderr", output.text


def test_the_first_notebook_is_ordinary_pytorch_but_for_the_magics() -> None:
    source = "\n".join(cell.source for cell in code(nbformat.read(NOTEBOOKS[0], as_version=4)))
    assert set(re.findall(r"^%\w+", source, re.MULTILINE)) == {"%load_ext", "%jax"}
    assert not re.search(r"^\s*(import|from) (jax|jaxtorch)\b", source, re.MULTILINE)


BADGE = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/jaxtorch/jaxtorch-kernel/blob/main/notebooks/{}.ipynb)"
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_with_a_badge_and_what_it_needs(path: Path) -> None:
    opening = nbformat.read(path, as_version=4).cells[0].source
    assert opening.splitlines()[0].startswith("# ")
    assert opening.splitlines()[2] == BADGE.format(path.stem)
    assert re.search(r"^It needs `jaxtorch-kernel\[lab(,\w+)*\]`", opening, re.MULTILINE)
    assert re.search(r"It takes about .* on two CPU cores\.$", opening)


def installing(notebook: nbformat.NotebookNode) -> str:
    """The statements of the first cell that install, as Python."""
    cell = TransformerManager().transform_cell(code(notebook)[0].source)
    return "\n".join(map(ast.unparse, ast.parse(cell).body[:2]))


class Shell:
    """A stand-in for IPython's shell, which notes what would be installed."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run_line_magic(self, name: str, line: str) -> None:
        self.ran.append(f"%{name} {line}")


def installed_by(notebook: nbformat.NotebookNode) -> list[str]:
    shell = Shell()
    exec(installing(notebook), {"get_ipython": lambda: shell})
    return shell.ran


def test_the_first_cell_installs_nothing_here(notebook: nbformat.NotebookNode) -> None:
    assert installed_by(notebook) == []


def third_party(notebook: nbformat.NotebookNode) -> set[str]:
    """The packages that the cells import, except Python's own."""
    found = set()
    for cell in code(notebook):
        for node in ast.walk(ast.parse(TransformerManager().transform_cell(cell.source))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found - sys.stdlib_module_names


def test_it_imports_only_what_the_first_cell_installs(
    notebook: nbformat.NotebookNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (line,) = installed_by(notebook)
    monkeypatch.undo()
    match = re.fullmatch(r'%pip install --quiet "jaxtorch-kernel\[(lab[\w,]*)\]"(.*)', line)
    assert match
    own = metadata.distribution("jaxtorch-kernel")
    names = {"jaxtorch-kernel", *match[2].split()}
    for extra in match[1].split(","):
        names |= {d.metadata["Name"].lower() for d in wheel.needed(own, extra)}
    distributions = metadata.packages_distributions()
    for package in third_party(notebook) - {"jaxtorch"}:
        assert {name.lower() for name in distributions[package]} & names, package


def test_a_missing_package_is_installed(
    notebook: nbformat.NotebookNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each package that is named in the first cell is looked for."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jaxtorch" else real(name)
    )
    assert len(installed_by(notebook)) == 1
