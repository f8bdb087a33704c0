"""Benchmarks are run by hand, so a renamed function could break them unnoticed. Here each module is imported."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks
from benchmarks import recording
from jaxtorch.insight import events


@pytest.mark.parametrize(
    "name", [m.name for m in pkgutil.iter_modules(benchmarks.__path__) if m.name != "__main__"]
)
def test_every_module_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")


def test_the_page_of_the_recording_benchmark_takes_what_a_view_sends() -> None:
    looking = recording.Looking()
    try:
        for how in ("recording", "view open", "off"):
            looking(how)
    finally:
        events.stop()
