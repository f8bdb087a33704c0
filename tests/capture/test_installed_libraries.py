"""Settings of libraries that captured code goes through, wherever these are installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jaxtorch

_LIBRARY = """
class Config:
    def __init__(self):
        self.scale = 2.0

def apply(config, x):
    return x * config.scale
"""


@pytest.fixture(params=["site-packages", "dist-packages", "python3/dist-packages"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A library in a folder of packages as installers make them."""
    folder = tmp_path / request.param
    folder.mkdir(parents=True)
    (folder / "scalings.py").write_text(_LIBRARY)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield importlib.import_module("scalings")
    finally:
        sys.path.remove(str(folder))
        del sys.modules["scalings"]


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_setting_that_a_library_reads(library: Any, capture: Any) -> None:
    config = library.Config()
    x = torch.ones(3, device="jax")

    @capture
    def f(x: torch.Tensor) -> torch.Tensor:
        return library.apply(config, x)

    assert f(x).tolist() == [2.0] * 3
    config.scale = 5.0
    assert f(x).tolist() == [5.0] * 3


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_an_import_retraces_no_code_that_asks_for_modules(
    capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @capture
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * (3 if "a_module_of_this_test" in sys.modules else 2)

    x = torch.ones(3, device="jax")
    assert f(x).tolist() == [2.0] * 3
    monkeypatch.setitem(sys.modules, "another_module", sys)
    f(x)
    assert f.cache_info().misses == 1
    monkeypatch.setitem(sys.modules, "a_module_of_this_test", sys)
    assert f(x).tolist() == [3.0] * 3
