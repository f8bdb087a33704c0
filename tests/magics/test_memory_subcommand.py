"""`%jax memory` and `%jax devices` in a real shell."""

from __future__ import annotations

import gc
import re
import sys
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError

from jaxtorch.insight.fit.report import fit
from jaxtorch.insight.memory import cells
from jaxtorch.magics.subcommands import memory
from jaxtorch.widgets import devices
from jaxtorch.widgets.fit import FitView
from jaxtorch.widgets.memory_timeline import MemoryTimelineView

from ..libtpu import needs_libtpu
from ..widgets.pages import harmless


def run(shell: Any, code: str) -> Any:
    result = shell.run_cell(code, store_history=True)
    result.raise_error()
    return result


def test_a_tensor_is_listed_by_the_line_of_its_cell(shell: Any) -> None:
    run(shell, "import torch")
    gc.collect()  # the shell of another test is a cycle, and must not be freed in the cell
    number = run(shell, "# a comment\nx = torch.ones(83, 107, device='jax')").execution_count
    (row,) = [
        r
        for r in shell.run_line_magic("jax", "memory").data()["arrays"]
        if r["shape"] == "[83, 107]"
    ]
    assert (row["name"], row["location"]) == ("x", f"[{number}]:2")
    assert (cells()[-1].cell, cells()[-1].after - cells()[-1].before) == (number, 83 * 107 * 4)


def test_why(shell: Any) -> None:
    run(shell, "import torch\nhistory = [torch.ones(81, 109, device='jax')]")
    view = shell.run_line_magic("jax", "memory --why history[0]")
    assert view.ways == ["history[0]"]
    shown = run(shell, "history[0] * 2").execution_count
    (row,) = [
        r
        for r in shell.run_line_magic("jax", "memory").data()["arrays"]
        if r["shape"] == "[81, 109]" and r["name"] != "history[0]"
    ]
    assert row["name"] == f"Out[{shown}]"
    ways = shell.run_line_magic("jax", f"memory --why Out[{shown}]").ways
    assert any(way.startswith(f"Out[{shown}]") for way in ways)


def test_a_cell_that_raises_and_one_within_another_are_counted(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shell, "import torch")
    monkeypatch.setattr(
        "jaxtorch.insight.memory._cells", []
    )  # those of other tests may be as many as are kept
    shell.run_cell("x = torch.ones(83, 107, device='jax')\n1 / 0", store_history=True)
    run(shell, "get_ipython().run_cell('y = x + 1')")
    assert len(cells()) == 3


def test_programs_and_devices(shell: Any) -> None:
    run(shell, "import torch, jaxtorch\nf = jaxtorch.pure(lambda x: x.sin(), name='in_memory')")
    run(shell, "x = torch.ones(83, 107, device='jax'); y = f(x)")
    assert "argument" in repr(shell.run_line_magic("jax", "memory in_memory"))
    assert "cpu" in repr(shell.run_line_magic("jax", "devices")).lower()
    assert "x: float32[83, 107]" in repr(shell.run_line_magic("jax", "devices x"))


@pytest.mark.parametrize("value", ["x -y", "-x", "[x, -y]", "x  # as it was", "(x, float('-inf'))"])
def test_what_follows_is_python_as_it_stands(shell: Any, value: str) -> None:
    run(shell, "import torch\nx = y = torch.ones(3, 5, device='jax')")
    assert "tensor float32[3, 5]" in repr(run(shell, f"%jax show {value}").result)
    assert "1 device" in repr(run(shell, "%jax devices  # all of them").result)
    if "," not in value:
        assert "float32[3, 5]" in repr(run(shell, f"%jax devices {value}").result)


def test_show_draws_an_expression(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run(shell, "import torch\nx = {'kept': torch.ones(3, 5, device='jax')}")
    shown = run(shell, "%jax show x['kept'] + 1").result
    assert "tensor float32[3, 5]" in repr(shown)
    assert "treescope" in shown._repr_html_()
    monkeypatch.setitem(sys.modules, "treescope", None)
    with pytest.raises(UsageError, match="pip install treescope"):
        shell.run_line_magic("jax", "show x")


def test_an_array_is_followed_by_its_name(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_PERIOD", 0.0)
    run(shell, "import torch\nx = torch.ones(3, 5, device='jax'); kept = [x]")
    view = shell.run_line_magic("jax", "devices kept[0]")
    revision = view.revision()
    assert view.revision() == revision
    run(shell, "kept[0] = torch.ones(7, device='jax')")
    assert view.revision() != revision
    assert "float32[7]" in view.data()["page"]["title"]
    run(shell, "del kept")
    shown = view.data()["page"]
    assert "float32[7]" in shown["title"]
    assert "'kept' is not defined" in shown["warnings"][0]


def test_what_computes_an_array_is_computed_once(shell: Any) -> None:
    run(shell, "import torch\nasked = []\ndef f():\n    asked.append(1)\n    return torch.ones(3)")
    run(shell, "x = torch.ones(4, 6, device='jax')")
    for text in ("f().to('jax')", "x[0]", "x.T"):
        view = shell.run_line_magic("jax", f"devices {text}")
        first = view.data()
        run(shell, "x = torch.ones(2, 2, device='jax')")
        assert view.data()["page"]["title"] == first["page"]["title"]
        run(shell, "x = torch.ones(4, 6, device='jax')")
    assert shell.user_ns["asked"] == [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("memory nosuchprogram", "No program is named 'nosuchprogram'"),
        ("memory --why nosuchname", "is not a tensor on the device"),
        ("memory f --why x", "not both"),
        ("devices nosuchname", "not defined"),
        ("devices 3", "neither a tensor"),
        ("show", "what to show"),
        ("show nosuchname", "not defined"),
    ],
)
def test_a_mistake_is_one_line(shell: Any, line: str, message: str) -> None:
    run(shell, "import torch\nx = torch.ones(3, device='jax')")
    with pytest.raises(UsageError, match=message) as caught:
        shell.run_line_magic("jax", line)
    assert "\n" not in str(caught.value)


CELL = """%%jax memory
big = torch.ones(512, 1024, device='jax')
twice = big * 2
del big
"""


def test_a_cell_over_time(shell: Any) -> None:
    run(shell, "import torch")
    gc.collect()
    view = run(shell, CELL).result
    assert isinstance(view, MemoryTimelineView)
    timeline = view.timeline
    assert (timeline.peak - timeline.before, timeline.after - timeline.before) == (4 << 20, 2 << 20)
    assert {"twice"} <= {held.name for held in timeline.held}
    for form in (repr(view), view._repr_html_()):
        for part in ("peak", "before", "after", "twice", "512, 1024", "]:2", "]:3"):
            assert part in form
    assert "<svg" in view._repr_html_()
    page = harmless(view._repr_html_())  # also without text in the drawing
    assert "(no name)" in page.text  # `big`, which the cell deletes
    bars = harmless(run(shell, "%jax memory").result.html()).text
    assert "cell [" not in bars  # of each of the bars by cell
    assert len(view._repr_html_()) < 60_000


def test_a_cell_that_fails_shows_its_memory_too(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(memory, "display", shown.append)
    run(shell, "import torch")
    result = shell.run_cell(f"{CELL}1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert [type(view) for view in shown] == [MemoryTimelineView]


def test_a_cell_under_another_magic(shell: Any) -> None:
    run(shell, "import torch\nx = torch.ones(64, 64, device='jax')")
    view = run(shell, "%%jax memory\n%%pure -q --name below\ny = x @ x").result
    assert shell.user_ns["y"].shape == (64, 64)
    assert view.timeline.error is None


@pytest.mark.parametrize("call", ["jaxtorch.jit(f)(x)", "jaxtorch.pure(f)(x)", "f(x)"])
def test_a_call_that_failed_is_no_memory(shell: Any, call: str) -> None:
    """Its error, which the shell keeps, refers to buffers without data."""
    run(shell, "import torch, jaxtorch\nx = torch.ones(3, device='jax')")
    run(shell, "def f(x):\n    return x[0].expand(1 << 42).clone()")
    failed = shell.run_cell(call).error_in_exec
    assert isinstance(failed, torch.OutOfMemoryError)
    run(shell, "%jax memory")
    run(shell, "%%jax memory\ny = x + 1")


def test_the_memory_of_a_compiled_variable(shell: Any) -> None:
    run(
        shell,
        "import torch, jaxtorch\n"
        "x = torch.ones(64, 64, device='jax')\n"
        "lowered = jaxtorch.pure(lambda x: (x @ x).sin()).lower(x)\n"
        "compiled = lowered.compile()",
    )
    text = shell.run_line_magic("jax", "memory compiled").text()
    assert text.splitlines()[0].startswith("compiled for cpu: peak of ")
    assert re.search(r"arguments +16.0 KiB", text), text  # 64 x 64 float32
    with pytest.raises(UsageError, match=r"`lowered = lowered.compile\(\)`"):
        shell.run_line_magic("jax", "memory lowered")
    with pytest.raises(UsageError, match="already compiled for its target"):
        shell.run_line_magic("jax", "memory compiled --target v5e:1x1")


@needs_libtpu
def test_the_memory_of_a_variable_compiled_for_a_chip_is_its_fit_report(shell: Any) -> None:
    run(
        shell,
        "import torch, jaxtorch\n"
        "x = torch.ones(64, 64, device='jax')\n"
        "compiled = jaxtorch.pure(lambda x: x @ x).lower(x, target='v5e:1x1').compile()",
    )
    shown = shell.run_line_magic("jax", "memory compiled")
    assert shown.text() == FitView(fit(shell.user_ns["compiled"]), "compiled").text()
