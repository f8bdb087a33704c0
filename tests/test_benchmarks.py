"""Benchmarks are run by hand, so a renamed function could break them unnoticed. Here each module is imported."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks


@pytest.mark.parametrize(
    "name", [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name != "__main__"]
)
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
