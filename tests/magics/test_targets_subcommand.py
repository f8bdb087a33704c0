"""`%jax targets` in a real shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import jaxtorch
from tests.widgets.pages import harmless


def test_each_chip_is_a_row_with_its_sources(shell: Any) -> None:
    view = shell.run_line_magic("jax", "targets")
    assert [row["id"] for row in view.data()["chips"]] == [c.name for c in jaxtorch.targets()]
    for text in (view.text(), view.html().replace("&nbsp;", " ")):
        assert "https://docs.cloud.google.com/tpu/docs/v5e" in text
        assert "16.0 GiB" in text
        for chip in jaxtorch.targets():
            said = f"{chip.name}: the published memory is rounded" in text
            assert said == (chip.available.value * chip.devices > chip.hbm.value)
    harmless(view.html())


def test_without_the_compiler_it_says_how_to_install_it(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = " ".join(shell.run_line_magic("jax", "targets").text().split())
    assert f"pip install --no-deps --target {tmp_path} " in text
