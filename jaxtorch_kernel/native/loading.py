"""Loads the compiled module of `native/`."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from ..base.program_files import refusal
from .build import missing, start, target


def _wanted() -> ModuleType | None:
    """The compiled module; None if it is not wanted or not compiled yet. Then its compilation starts, if it can."""
    if os.environ.get("JAXTORCH_NATIVE") == "off":
        return None
    path = target()
    if refusal(path.parent):  # others can write there, or nobody can
        return None
    if path.exists():
        return load(path)
    if missing() is None:
        start()
    return None


def load(path: Path) -> ModuleType | None:
    """The module in this file; None if it cannot be loaded."""
    loader = ExtensionFileLoader("jaxtorch.native.calls", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # compiled with another C++ library, for one
        return None
    return module


calls = _wanted()
