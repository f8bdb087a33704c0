"""Signatures have real types: `Any` is for what a user passes through, and for what torch and JAX do not type."""

from __future__ import annotations

import ast

from scripts.import_graph import modules

MOST = 600  # 2,121 before the layers were drawn


def test_any_is_rare() -> None:
    uses = {
        name: sum(isinstance(n, ast.Name) and n.id == "Any" for n in ast.walk(ast.parse(text)))
        for name, text in ((name, file.read_text()) for name, file in modules().items())
    }
    most = sorted(uses.items(), key=lambda use: -use[1])[:5]
    assert sum(uses.values()) <= MOST, f"{sum(uses.values())} uses of Any; the most in {most}"
