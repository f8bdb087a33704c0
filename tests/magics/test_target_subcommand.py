"""`%jax target`, and `--target` on the magics that show a program."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxtorch.capture import tpu
from jaxtorch.capture.background import background
from jaxtorch.capture.target import current_target
from jaxtorch.magics import elsewhere, progress
from jaxtorch.widgets.diff import DiffView
from tests.libtpu import needs_libtpu
from tests.widgets.pages import harmless

from .cells import pressing, run
from .test_completion import after

CELL = "%%pure -q --name <b>\ny = x @ w"


@pytest.fixture
def shell(shell: Any) -> Iterator[Any]:
    run(shell, "import torch\n%jax on")
    run(shell, "x = torch.ones(8, 130)\nw = torch.ones(130, 130)")
    yield shell
    run(shell, "%jax off")


def shown(capsys: Any) -> str:
    captured = capsys.readouterr()
    return str(captured.out + captured.err)


@needs_libtpu
def test_programs_are_compiled_between_cells_and_listed(shell: Any, capsys: Any) -> None:
    run(shell, "%jax target v5e:1x1")
    assert "Target: v5e:1x1." in shown(capsys)
    run(shell, CELL)
    before = shell.run_line_magic("jax", "target")
    (row,) = [row for row in before.data()["programs"] if row["target"] == "v5e:1x1"][-1:]
    assert row["program"] == "<b>"
    target = current_target()
    assert target is not None
    revision = before.revision()
    target.wait()
    assert before.revision() != revision
    after_it = shell.run_line_magic("jax", "target")
    assert after_it.data()["programs"][-1]["state"] == "compiled"
    assert after_it.data()["programs"][-1]["memory"] > 4 * (8 * 130 + 130 * 130)
    assert "TPU" not in before.text().splitlines()[0]
    harmless(after_it.html())
    run(shell, "%jax target off")
    assert current_target() is None
    assert tpu.shared.process is None
    run(shell, CELL.replace("x @ w", "x @ w + 1"))
    assert shell.run_line_magic("jax", "target").data()["programs"] == after_it.data()["programs"]


@needs_libtpu
@pytest.mark.parametrize("magic", ["pure", "jit"])
def test_a_cell_that_waits_for_its_result(shell: Any, capsys: Any, magic: str) -> None:
    for _ in range(2):  # the second time, the program is not compiled again
        run(shell, f"%%{magic} -q --target v5e:1x1 --name waited\nz = x @ w")
        text = shown(capsys)
        assert "Fits a TPU v5e:" in text
        assert "waited for v5e:1x1" in text
    assert shell.user_ns["z"].sum().item() == 8 * 130 * 130


@needs_libtpu
@pytest.mark.parametrize("two", ["--target v5e:1x1 v6e:1x1", "--target v5e:1x1 --target v6e:1x1"])
def test_a_cell_for_two_chips_shows_both_reports(shell: Any, capsys: Any, two: str) -> None:
    run(shell, f"%%pure -q {two}\nz = x @ w + 2")
    text = shown(capsys)
    assert text.count("Fits a TPU v5e:") == text.count("Fits a TPU v6e:") == 1


@needs_libtpu
@pytest.mark.parametrize("two", ["--target v5e:1x1 v6e:1x1", "--target v5e:1x1 --target v6e:1x1"])
def test_the_hlo_of_a_chip_and_the_difference_of_two(shell: Any, two: str) -> None:
    run(shell, "%%pure -q --name shown\ny = torch.softmax(x @ w, 1)")
    view = shell.run_line_magic("jax", "hlo shown --target v5e:1x1")
    assert ":T(8,128)}" in view.text()  # a TPU's tiles
    assert "shown for v5e:1x1" in view.text()
    assert "%w = f32[130,130]" in view.text()  # the names of the session
    assert ":T(8,128)}" not in shell.run_line_magic("jax", "hlo shown").text()
    assert "shown for v5e:1x1" in view.html()
    both = shell.run_line_magic("jax", f"hlo shown {two}")
    assert isinstance(both, DiffView)
    assert "shown for v6e:1x1" in both.text()


@needs_libtpu
def test_the_hlo_of_a_cell(shell: Any) -> None:
    view = shell.run_cell_magic("jax", "hlo --target v5e:1x1", "y = x @ w - 1")
    assert ":T(8,128)}" in view.text()


@needs_libtpu
def test_the_memory_of_a_chip(shell: Any) -> None:
    run(shell, "%%pure -q --name held\ny = x @ w")
    view = shell.run_line_magic("jax", "memory held --target v6e:1x1")
    assert "Fits a TPU v6e" in view.text()
    assert "held for v6e:1x1" in view.text()
    kinds = {row["kind"]: row["bytes"] for row in view.data()["kinds"]}
    assert kinds["inputs"] == 4 * (8 * 256 + 136 * 256)  # in tiles of 8 x 128
    harmless(view.html())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("target v5e", "such as 'v5e:1x1' or 'v5e:2x2' or 'v5e:2x4', not 'v5e'"),
        ("target v5:2x2", "Did you mean 'v5p'?"),
        ("target v5e:3x3", "The nearest is 'v5e:4x4'"),
        ("hlo --target v5e:3x3", "The nearest is 'v5e:4x4'"),
        ("memory --target v5e:3x3", "The nearest is 'v5e:4x4'"),
        ("memory --target v5e:1x1 --target v6e:1x1", "one target at a time"),
        ("memory --target v5e:1x1 v6e:1x1", "one target at a time"),
    ],
)
def test_a_wrong_target_is_one_line(shell: Any, capsys: Any, line: str, message: str) -> None:
    run(shell, CELL)
    shown(capsys)
    shell.run_cell(f"%jax {line}")
    text = shown(capsys).strip()
    assert text.startswith("UsageError: ")
    assert message in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("line", ["%jax target v5e:1x1", "%%pure --target v5e:1x1\nn = never + 1"])
def test_without_the_compiler_one_line_says_how_to_install_it(
    shell: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    run(shell, "never = x")
    shown(capsys)
    shell.run_cell(line)
    text = shown(capsys).strip()
    assert "pip install" in text
    assert len(text.splitlines()) == 1
    assert "n" not in shell.user_ns  # before anything runs
    assert current_target() is None


def test_ctrl_c_while_it_waits_cancels(
    shell: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "worker.py").write_text("import time; time.sleep(999)")
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    tpu.shared.close()
    monkeypatch.setattr(tpu.shared, "_worker", tmp_path / "worker.py")
    run(shell, "%%pure -q --name stuck\ny = x @ w * 3")
    with pressing(2.0):
        result = shell.run_cell("%jax memory stuck --target v5e:1x1", store_history=False)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    row = shell.run_line_magic("jax", "target").data()["programs"][-1]
    assert (row["program"], row["state"]) == ("stuck", "cancelled")
    run(shell, "assert y.sum().item() == 3 * 8 * 130 * 130")


def test_unloading_ends_it(bare: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    run(bare, "%load_ext jaxtorch")
    run(bare, "%jax target v5e:1x1")
    assert current_target() is not None
    run(bare, "%unload_ext jaxtorch")
    assert current_target() is None
    assert not background._held


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("%jax target v5e:", "v5e:2x4"),
        ("%jax target o", "off"),
        ("%jax hlo --target v6e", "v6e:1x1"),
        ("%jax hlo --target v6e:1x1 v5p", "v5p:2x2x1"),
        ("%jax memory --target tpu", "tpu7x:1x1x1"),
        ("%%jit --target v4", "v4:2x2x1"),
    ],
)
def test_targets_are_completed(shell: Any, line: str, offered: str) -> None:
    assert offered in after(shell, line)


class Sink:
    """Stands for the output of a cell."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def show(self, line: str) -> None:
        self.texts.append(line)

    def clear(self, done: str) -> None:
        self.show(done)

    def settle(self) -> None:
        pass


@needs_libtpu
@pytest.mark.parametrize("notebook", [True, False])
def test_what_became_of_a_cells_programs(
    shell: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch, notebook: bool
) -> None:
    sinks: list[Sink] = []

    def new() -> progress.Sink:
        sinks.append(Sink())
        return sinks[-1]

    lines = elsewhere.TargetLines(new if notebook else None)
    monkeypatch.setattr(elsewhere, "_lines", lines)
    monkeypatch.setattr(background, "on_change", lines.changed)
    run(shell, "%jax target v5e:1x1")
    run(shell, "%%pure -q --name said\ny = x @ w * 4")
    target = current_target()
    assert target is not None
    while not all(program.ended for program in target.programs):
        time.sleep(0.05)
    shown(capsys)
    run(shell, "1 + 1")
    if notebook:  # below the cell, whose line is replaced
        (sink,) = sinks
        assert sink.texts[0] == "said for v5e:1x1: waiting"
        assert sink.texts[-1].startswith("said for v5e:1x1: Fits a TPU v5e: ")
        assert "said" not in shown(capsys)
    else:  # after the next cell
        assert "said for v5e:1x1: Fits a TPU v5e: " in shown(capsys)
    run(shell, "%jax target off")
