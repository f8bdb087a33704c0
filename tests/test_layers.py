"""The packages are layers: each imports only those below it, and no modules import each other in a circle.

Imports within functions count too: they would only hide an import upward, or a circle.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter

import pytest

from scripts.import_graph import LAYERS, PAGE, graph, layer_of, section


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return graph()


def height(module: str) -> int:
    """The layer of a module: its package's, or above all of them (`jaxtorch`, `jaxtorch.autoload`)."""
    layer = layer_of(module)
    return len(LAYERS) if layer is None else LAYERS.index(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_nothing_above_it(layer: str, imports: dict[str, set[str]]) -> None:
    own = [m for m in imports if m.startswith(f"jaxtorch.{layer}")]
    assert own
    upward = {(m, other) for m in own for other in imports[m] if height(other) > height(m)}
    assert not upward


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_the_picture_of_the_layers_is_the_order_here() -> None:
    named = re.findall(r"^ {4,6}(\w+)/", PAGE.read_text(), re.MULTILINE)
    assert [name for name in named if name in LAYERS] == LAYERS


def test_the_drawn_graph_is_that_of_the_code() -> None:
    assert section() in PAGE.read_text(), "run `python -m scripts.import_graph`"
