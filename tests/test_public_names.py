"""The public names: found at run time, known to type checkers, and the same in both."""

from __future__ import annotations

import ast
import inspect

import jaxtorch


def test_type_checkers_see_the_names_that_exist() -> None:
    tree = ast.parse(inspect.getsource(jaxtorch))
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    declared = {
        alias.name: f".{node.module}" if node.level and node.module else node.module or "."
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == jaxtorch._HOME_OF


def test_every_name_is_found() -> None:
    for name in jaxtorch.__all__:
        assert getattr(jaxtorch, name) is not None
    assert len(set(jaxtorch.__all__)) == len(jaxtorch.__all__)
