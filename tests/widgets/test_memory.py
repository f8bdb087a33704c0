"""The view of what lives on the device."""

from __future__ import annotations

import json

import torch

import jaxtorch
from jaxtorch.insight.hlo.reading import Reading
from jaxtorch.insight.memory import live_arrays, watching
from jaxtorch.insight.programs import program
from jaxtorch.widgets.memory import MemoryView, ProgramMemoryView
from jaxtorch.widgets.units import size

from .pages import harmless

EVIL = "<img src=x onerror=alert(1)>"


def test_rows_add_up_and_names_are_text() -> None:
    # Larger than what other tests of this process keep: a page shows the largest.
    names = {"kept": {EVIL: torch.zeros(1089, 2103, device="jax")}}
    with watching(3):
        pass
    view = MemoryView(names)
    data = json.loads(json.dumps(view.data()))
    sizes = [a.nbytes for a in live_arrays(names)]
    total = sum(r["bytes"] for r in data["lines"])
    assert total == sum(sizes)
    assert sum(r["bytes"] for r in data["arrays"]) == sum(sizes[:2000])  # the largest
    assert data["page"]["title"].startswith(f"{size(total)} in ")
    (row,) = [r for r in data["arrays"] if r["shape"] == "[1089, 2103]"]
    assert row["name"] == f"kept['{EVIL}']"
    assert data["cells"][0]["cell"] == "[3]"
    page = harmless(view.html())
    assert f"kept['{EVIL}']" in page.text
    assert EVIL in view.text() or "…" in view.text()
    assert view.answer("why", {"row": row["id"]}).notes[0].text == f"kept['{EVIL}']"


def test_a_programs_memory_is_told_by_buffer() -> None:
    f = jaxtorch.pure(lambda a, b: a @ b, name="memory_of")
    f(torch.ones(32, 48, device="jax"), torch.ones(48, 16, device="jax"))
    info = program("memory_of")
    view = ProgramMemoryView(info, Reading(info).buffers)
    text = view.text()
    assert "memory_of" in text
    data = json.loads(json.dumps(view.data()))
    [facts] = [s for s in data["page"]["sections"] if s["type"] == "facts"]
    assert facts["facts"][0]["lines"] == [size(4 * (32 * 48 + 48 * 16))]
    sizes = sorted(b["bytes"] for b in data["buffers"] if b["kind"] == "argument")
    assert sizes == [4 * 48 * 16, 4 * 32 * 48]
    assert "argument" in harmless(view.html()).text


def test_a_program_that_is_gone_says_so() -> None:
    f = jaxtorch.pure(lambda a: a + 1, name="memory_gone")
    f(torch.ones(3, device="jax"))
    info = program("memory_gone")
    f.clear_cache()
    assert "its memory is no longer known" in ProgramMemoryView(info).text()
