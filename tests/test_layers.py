"""The packages are layers: each imports what lies below it, and no modules import each other in a circle.

Imports within functions count too: they would only hide an import upward, or a circle.
"""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

# From the bottom up. `docs/architecture.md` says what each holds.
LAYERS = [
    *("base", "storage", "lowerings", "programs", "dispatch", "operators", "device"),
    *("capture", "interop", "insight", "widgets", "magics"),
]
ROOT = Path(__file__).parents[1]
FOLDERS = {
    "jaxtorch": ROOT / "jaxtorch_kernel",
    "jaxtorch.magics": ROOT / "magics",
    "jaxtorch.widgets": ROOT / "widgets",
}


def modules() -> dict[str, Path]:
    """The file of each module; of a package, its `__init__.py`."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            if "node_modules" not in file.parts:
                parts = file.relative_to(folder).with_suffix("").parts
                found[".".join([package, *parts]).removesuffix(".__init__")] = file
    return found


MODULES = modules()


def imports(module: str) -> set[str]:
    """The modules of this project that one imports, wherever it does, but not for its annotations alone."""
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(file.read_text())
    typing = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    ]
    left_out = {id(part) for branch in typing for part in ast.walk(branch)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = resolve_name("." * node.level + (node.module or ""), package)
            parts = {f"{name}.{alias.name}" for alias in node.names}
            found |= (parts & MODULES.keys()) or {name}
    return found & MODULES.keys() - {module}


GRAPH = {module: imports(module) for module in MODULES}


def height(module: str) -> int:
    """The layer of a module: its package's, or above all of them (`jaxtorch`, `jaxtorch.autoload`)."""
    part = module.removeprefix("jaxtorch").lstrip(".").split(".")[0]
    return LAYERS.index(part) if part in LAYERS else len(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_nothing_above_it(layer: str) -> None:
    own = [m for m in MODULES if m.startswith(f"jaxtorch.{layer}")]
    assert own
    upward = {(m, other) for m in own for other in GRAPH[m] if height(other) > height(m)}
    assert not upward


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_picture_of_the_layers_is_the_order_here() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"^ {4,6}(\w+)/", text, re.MULTILINE)
    assert [name for name in named if name in LAYERS] == LAYERS
