"""`%jax hlo` and `%%jax hlo` in a real shell."""

from __future__ import annotations

import json
import linecache
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError

from jaxtorch.insight.programs import programs
from jaxtorch.widgets.diff import DiffView
from jaxtorch.widgets.hlo import HloView
from tests.libtpu import needs_libtpu

from .cells import SETUP, fails, run

CELL = """\
h = images @ weight
h = torch.tanh(h)
score = h.sum()
"""

NAMES = """
weight = torch.randn(4, 7)
"""


@pytest.fixture
def ready(shell: Any) -> Any:
    run(shell, SETUP)
    run(shell, NAMES)
    return shell


def line_of(view: HloView, opcode: str) -> int:
    """The cell's line of the only line that has this opcode."""
    reading = view.reading
    locations = {
        location
        for i in reading.module.instructions.values()
        if i.opcode == opcode and (location := reading.sources.of(i)) is not None
    }
    (location,) = locations
    (source,) = [s for s in reading.texts() if s.file == location.file]
    assert CELL.strip() in "\n".join(source.lines)
    return location.line


def test_over_a_cell_it_runs_it_once_and_shows_its_program(ready: Any) -> None:
    view = run(ready, f"%%jax hlo\n{CELL}")
    assert isinstance(view, HloView)
    assert (line_of(view, "dot"), line_of(view, "tanh"), line_of(view, "reduce")) == (2, 3, 4)
    names = ready.user_ns
    expected = torch.tanh(names["images"].cpu() @ names["weight"].cpu()).sum()
    assert names["score"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert view.reading.program.kind == "pure"


def test_a_cell_that_says_how_is_run_as_it_says(ready: Any) -> None:
    view = run(ready, f"%%jax hlo\n%%pure --name shown -q\n{CELL}")
    assert (view.reading.program.name, view.reading.program.kind) == ("shown", "pure")
    assert (line_of(view, "dot"), line_of(view, "tanh")) == (3, 4)
    again = run(ready, f"%%jax hlo\n%%pure --name shown -q\n{CELL}")
    assert again.reading.program.id == view.reading.program.id


@pytest.mark.parametrize(
    "head",
    [
        "%%jax hlo",
        "%%jax hlo --stage jaxpr",
        "%%jax hlo\n%%pure --name typed",
        "%%jax hlo\n\n%%jit -q",
    ],
)
def test_the_source_is_the_cell_as_it_was_typed(ready: Any, head: str) -> None:
    cell = f"{head}\n\n# a comment\n{CELL}names = %who_ls str\n"
    view = run(ready, cell)
    lines = cell.splitlines()
    (file,) = {row.location.file for row in view.reading.lines if row.location is not None}
    assert [line.rstrip() for line in linecache.getlines(file)] == lines
    assert lines[line_of(view, "dot") - 1] == CELL.splitlines()[0]


def test_a_cell_with_effects_is_a_whole_step(ready: Any) -> None:
    run(
        ready,
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\nbefore = model[0].weight.clone()",
    )
    cell = """%%jax hlo
optimizer.zero_grad()
loss = F.cross_entropy(model(images), labels)
loss.backward()
optimizer.step()
"""
    view = run(ready, cell)
    assert not torch.equal(
        ready.user_ns["before"].cpu(), ready.user_ns["model"][0].weight.detach().cpu()
    )
    lines = {r.location.line for r in view.reading.lines if r.location is not None and r.cost.flops}
    assert lines == {3, 5}  # what backward() computes belongs to the line whose gradient it is
    run(ready, "stepped = model[0].weight.clone()")
    run(ready, cell)
    assert not torch.equal(
        ready.user_ns["stepped"].cpu(), ready.user_ns["model"][0].weight.detach().cpu()
    )


STEP = "def step():\n    loss = F.cross_entropy(model(batch), labels)\n    loss.backward()\n    return loss\n"


@pytest.mark.parametrize(
    "code",
    [
        "optimizer.zero_grad()\nloss = model(batch).sum()\nloss.backward()\noptimizer.step()",
        "loss = step()",
        "total += batch.sum()",
        "total[...] = batch.sum()",
        "total.add_(batch.sum())",
        "F.relu_(total)",
    ],
)
def test_a_cell_with_effects_runs_once(ready: Any, capsys: Any, code: str) -> None:
    run(
        ready,
        f"{STEP}total = torch.zeros(())\noptimizer = torch.optim.SGD(model.parameters(), 0.1)",
    )
    view = run(ready, f'%%jax hlo\nbatch = images * 1\nprint("once")\n{code}')
    assert view.reading.program.kind == "jit"
    assert capsys.readouterr().out.split().count("once") == 1
    assert torch.equal(ready.user_ns["batch"].cpu(), ready.user_ns["images"].cpu())


def test_an_effect_that_is_not_seen_is_refused_and_the_cell_not_run_again(
    ready: Any, capsys: Any
) -> None:
    run(ready, "total = torch.zeros(())\nadd = torch.Tensor.add_")
    output = fails(ready, capsys, '%%jax hlo\nprint("once")\nadd(total, images.sum())')
    assert "%%jit" in output
    assert output.split().count("once") == 1
    assert ready.user_ns["total"].item() == 0.0
    run(ready, "%%jax hlo\n%%jit\nadd(total, images.sum())")
    assert ready.user_ns["total"].item() == pytest.approx(ready.user_ns["images"].sum().item())


def test_code_that_writes_into_what_it_made_keeps_its_gradient(ready: Any) -> None:
    run(ready, "weight.requires_grad_()")
    run(ready, "%%jax hlo\nh = images @ weight\nh.mul_(2)\nh[0] = 0\nscore = h.sum()")
    run(ready, "score.backward()")
    assert ready.user_ns["weight"].grad is not None


def test_the_value_of_a_cell_is_shown_before_its_program(ready: Any, capsys: Any) -> None:
    run(ready, f"%%jax hlo\n{CELL}score * 0 + 42")
    assert "tensor(42." in capsys.readouterr().out


def test_a_line_shows_a_program_by_name_by_number_or_the_latest(ready: Any) -> None:
    run(ready, f"%%pure -q --name first\n{CELL}")
    run(ready, f"%%pure -q --name second\n{CELL}last = score + 1")
    latest = run(ready, "%jax hlo")
    assert latest.reading.program.name == "second"
    first = run(ready, "%jax hlo first")
    assert first.reading.program.name == "first"
    number = first.reading.program.id
    assert run(ready, f"%jax hlo {number}").reading.program.id == number
    assert run(ready, f"%jax hlo #{number}").reading.program.id == number


def test_the_program_of_the_gradients(ready: Any, capsys: Any) -> None:
    run(ready, "weight.requires_grad_()")
    run(ready, f"%%pure -q --name graded\n{CELL}")
    assert "has no backward program yet" in fails(ready, capsys, "%jax hlo graded --backward")
    run(ready, "score.backward()")
    view = run(ready, "%jax hlo graded --backward")
    assert view.reading.program.part == "backward"
    assert {r.location.line for r in view.reading.lines if r.location is not None} == {2, 3, 4}
    assert run(ready, "%jax hlo graded").reading.program.part == "saving"


def test_two_versions_of_a_cell_differ_where_it_was_changed(ready: Any) -> None:
    run(ready, f"%%pure -q --name versions\n{CELL}")
    same = run(ready, f"%%pure -q --name versions\n{CELL}\n# the same") or run(
        ready, "%jax hlo --diff versions"
    )
    assert isinstance(same, DiffView)
    assert (same.diff.added, same.diff.removed) == (0, 0)
    assert "no difference" in same.text()
    run(ready, f"%%pure -q --name versions\n{CELL.replace('tanh', 'sin')}")
    view = run(ready, "%jax hlo --diff versions")
    text = view.text()
    assert re.search(r"^- .* tanh\(", text, re.MULTILINE)
    assert re.search(r"^\+ .* sine\(", text, re.MULTILINE)
    assert not re.search(r"^[-+] .* dot\(", text, re.MULTILINE)
    ids = view.first.program.id, view.second.program.id
    again = run(ready, f"%jax hlo {ids[0]} {ids[1]} --stage jaxpr")
    assert re.search(r"^- .*= tanh", again.text(), re.MULTILINE)


@pytest.mark.parametrize("stage", ["jaxpr", "stablehlo", "hlo"])
def test_saved_texts_are_whole(ready: Any, tmp_path: Path, stage: str, capsys: Any) -> None:
    run(ready, f"%%pure -q\n{CELL}")
    file = tmp_path / "text with spaces"
    assert run(ready, f"%jax hlo --stage {stage} --save '{file}'") is None
    text = file.read_text()
    assert "tanh" in text
    assert f"{len(text.splitlines())} lines" in capsys.readouterr().out
    if stage == "hlo":
        from jaxlib._hlo import hlo_module_from_text

        assert hlo_module_from_text(text).name.startswith("jit_cell")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("scor", "'score'"),
        ("#999999", "#999999"),
        ("a b c", "one program or compares two"),
        ("--stage llvm", "llvm"),
        ("--line two", "two"),
        ("--grap x", "--grep"),
        ("--save /nowhere/at/all", "No such file"),
    ],
)
def test_a_mistake_gets_one_line(ready: Any, capsys: Any, line: str, hint: str) -> None:
    run(ready, f"%%pure -q --name score\n{CELL}")
    message = fails(ready, capsys, f"%jax hlo {line}")
    assert hint in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("options", ["name", "--diff"])
def test_over_a_cell_no_program_is_named(ready: Any, options: str) -> None:
    with pytest.raises(UsageError, match="shows the cell's own program"):
        ready.run_cell_magic("jax", f"hlo {options}", CELL)
    assert "score" not in ready.user_ns


def test_a_cell_that_fails_changes_nothing(ready: Any, capsys: Any) -> None:
    message = fails(ready, capsys, f"%%jax hlo\n{CELL}if score > 0:\n    score = -score\n")
    assert "line 5" in message
    message = fails(ready, capsys, f"%%jax hlo\n{CELL}raise ValueError('mine')\n")
    assert "mine" in message


def test_one_program_cannot_be_compared(ready: Any, capsys: Any) -> None:
    run(ready, f"%%pure -q --name lonely\n{CELL}")
    message = fails(ready, capsys, "%jax hlo lonely --diff")
    assert "There is only one program of 'lonely': nothing to compare" in message


def test_a_cell_that_computes_nothing_is_a_program_without_work(ready: Any) -> None:
    view = run(ready, "%%jax hlo\nnothing = 1 + 1\n")
    assert ready.user_ns["nothing"] == 2
    assert view.reading.costs.total == (0, 0, 0)
    assert "0 FLOPs" in view.text()
    assert not [s for s in view.data()["page"]["sections"] if s.get("key") == "fusions"]


def test_names_complete(ready: Any) -> None:
    run(ready, f"%%pure -q --name quagga\n{CELL}")
    from IPython.core.completer import provisionalcompleter

    line = "%jax hlo quag"
    with provisionalcompleter():
        assert [c.text for c in ready.Completer.completions(line, len(line))] == ["quagga"]
    assert "quagga" in {p.name for p in programs()}


def test_random_numbers_have_the_lines_of_their_own_cell(ready: Any) -> None:
    """JAX's primitive for random bits is traced once in a process, with the lines of the first cell."""
    run(ready, "%%pure\n\nfirst = F.dropout(images, 0.5).sum()")
    view = run(ready, "%%jax hlo\n%%pure -q\nimages\nimages\nlast = F.dropout(images, 0.5).sum()")
    lines = {r.location.line for r in view.reading.lines if r.location is not None and r.cost.flops}
    assert lines == {5}


# -- what `lower` returned -------------------------------------------------------------------------------------


def test_a_lowered_program_is_read_by_the_name_of_its_variable(shell: Any) -> None:
    shell.run_cell(
        "import torch, jaxtorch\n"
        "x = torch.ones(4, 4, device='jax')\n"
        "lowered = jaxtorch.pure(lambda x: (x @ x).sin()).lower(x)\n"
        "first = lowered.compile()\n"
        "second = jaxtorch.pure(lambda x: (x @ x @ x).sin()).lower(x).compile()\n"
    ).raise_error()
    view = shell.run_line_magic("jax", "hlo first")
    text = view.text()
    assert text.splitlines()[0].startswith("Program first for cpu (lower)")
    assert "dot" in text
    assert "first for cpu (lower)" in view.html()
    json.dumps(view.data())
    assert "dot_general" in shell.run_line_magic("jax", "hlo first --stage jaxpr").text()
    difference = shell.run_line_magic("jax", "hlo first second").text()
    assert difference.splitlines()[:2] == [
        "--- first for cpu (lower)",
        "+++ second for cpu (lower)",
    ]
    with pytest.raises(UsageError, match=re.escape("`lowered = lowered.compile()`")):
        shell.run_line_magic("jax", "hlo lowered")


@needs_libtpu
def test_a_step_on_two_meshes_is_compared(shell: Any) -> None:
    shell.run_cell(
        "import torch, jaxtorch\n"
        "from jax.sharding import PartitionSpec as P\n"
        "with torch.device('meta'):\n"
        "    layer, x = torch.nn.Linear(256, 256, bias=False), torch.empty(64, 256)\n"
        "def on(mesh, spec):\n"
        "    rules = {'input': P('data'), '*weight': spec}\n"
        "    step = jaxtorch.pure(layer)\n"
        "    return step.lower(x, target='v5e:2x2', mesh=mesh, shardings=rules).compile()\n"
        "one, two = on({'data': 4}, P('data')), on({'data': 2, 'model': 2}, P('model'))\n"
    ).raise_error()
    lines = shell.run_line_magic("jax", "hlo one two").text().splitlines()
    assert lines[0] == "--- one for v5e:2x2, data=4 (lower)"
    assert lines[1] == "+++ two for v5e:2x2, data=2, model=2 (lower)"
    assert any(line.startswith("-") and "all-gather" in line for line in lines[2:])
    with pytest.raises(UsageError, match="works with programs of the session"):
        shell.run_line_magic("jax", "hlo one --target v5e:1x1")
