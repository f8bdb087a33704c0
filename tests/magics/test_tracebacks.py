"""What a notebook shows of an error: the frames of the user and of torch, as on the CPU, and the message."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import jaxtorch

from .mistakes import COMPILED, MISTAKES, ONLY_HERE, OTHERS, REFUSED, SETUP

MOST_LINES = 25


@dataclass
class Shown:
    """What IPython sends to the notebook for an error (`Shell._showtraceback`)."""

    kind: str = ""
    message: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(self.parts)).splitlines()

    @property
    def frames(self) -> list[str]:
        """File and function of each frame; "cell" for those of the user."""
        frames = []
        for line in self.lines:
            if re.match(r"(Cell In|File <ipython-input)", line):
                frames.append("cell")
            elif match := re.match(r"File (.+?):\d+(?:, in ([\w.<>]+))?", line):
                frames.append(f"{match[1].rpartition('site-packages/')[2]} {match[2]}")
        return frames


Fail = Callable[[str], Shown]


@pytest.fixture
def fail(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fail]:
    """Runs a cell that fails; returns what is shown."""
    shown = Shown()

    def show(kind: type, value: BaseException, parts: list[str]) -> None:
        shown.kind, shown.message, shown.parts = kind.__name__, str(value), parts

    monkeypatch.setattr(shell, "_showtraceback", show)
    monkeypatch.setattr("IPython.core.formatters.get_ipython", lambda: shell)
    shell.run_cell(SETUP).raise_error()
    shell.run_cell("setup('jax')").raise_error()

    def run(cell: str) -> Shown:
        shown.parts = []
        shell.run_cell(cell)
        assert shown.parts, "the cell did not fail"
        return Shown(shown.kind, shown.message, shown.parts)

    yield run
    jaxtorch.config.update(tracebacks="short", execution="immediate")


def assert_short(shown: Shown) -> None:
    """At most 25 lines, no frame of jaxtorch or of JAX, nothing above the error itself, the message last."""
    assert len(shown.lines) <= MOST_LINES, "\n".join(shown.lines)
    frames = [f for f in shown.frames if f != "cell" and not f.startswith("torch/")]
    assert frames == []
    assert shown.lines[1].startswith(shown.kind)
    assert not re.search("During handling|direct cause|skipping hidden", "\n".join(shown.lines))
    assert f"{shown.kind}: {shown.message}".splitlines()[0] in shown.lines
    assert "/jaxtorch" not in "\n".join(shown.lines[:-1])


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize("name", MISTAKES)
def test_the_frames_are_those_of_the_cpu(
    shell: InteractiveShell, fail: Fail, name: str, execution: str
) -> None:
    jaxtorch.config.update(execution=execution)
    shown = fail(MISTAKES[name])
    shell.run_cell("setup('cpu')").raise_error()
    expected = fail(MISTAKES[name])
    assert shown.frames == expected.frames
    assert shown.kind == expected.kind
    if name == "in an except block":
        assert "KeyError: 'a'" in shown.lines
    else:
        assert_short(shown)


@pytest.mark.parametrize("name", COMPILED)
def test_errors_of_compiled_functions_name_the_line_and_are_short(fail: Fail, name: str) -> None:
    cell, words, line = COMPILED[name]
    shown = fail(cell)
    assert shown.frames == ["cell"]
    text = "\n".join(shown.lines)
    assert words in text
    assert re.search(rf"from user code:\n +Cell In\[\d+\], line {line}, in ", text)
    assert "/_dynamo/" not in text
    assert "site-packages" not in text
    assert "/jaxtorch/" not in text
    assert len(shown.lines) <= MOST_LINES


@pytest.mark.parametrize("name", COMPILED)
def test_torch_logs_for_a_compiled_function_what_it_logs_on_the_cpu(
    shell: InteractiveShell, fail: Fail, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Dynamo logs some errors before it calls a backend. So the log is torch's own, without additions of jaxtorch."""
    cell = COMPILED[name][0]
    here = logged(shell, caplog, cell)
    shell.run_cell("setup('cpu')").raise_error()
    assert here == logged(shell, caplog, cell.replace("backend='jax'", "backend='eager'"))
    if name == "an operator":
        assert "failed while attempting to run meta" in here[0]


def logged(shell: InteractiveShell, caplog: pytest.LogCaptureFixture, cell: str) -> list[str]:
    """The warnings and errors that are logged while a cell runs."""
    torch._dynamo.reset()
    caplog.clear()
    shell.run_cell(cell)
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", REFUSED)
def test_a_cell_that_cannot_be_captured_is_refused_without_a_traceback(
    fail: Fail, name: str
) -> None:
    cell, words = REFUSED[name]
    shown = fail(cell)
    assert words in shown.lines[0]
    assert not shown.frames
    assert len(shown.lines) <= MOST_LINES


def test_a_message_names_a_line_by_its_cell(fail: Fail) -> None:
    shown = fail("@jaxtorch.pure\ndef f(x):\n    y = x + 1\n    return y.item()\nf(x[0, 0])")
    assert re.search(r"\(Cell In\[\d+\], line 4\)\.", shown.lines[-1])


@pytest.mark.parametrize("name", ONLY_HERE)
def test_no_frame_is_ours(fail: Fail, name: str) -> None:
    cell, users, torchs, words = ONLY_HERE[name]
    shown = fail(cell)
    assert_short(shown)
    assert words in shown.message
    counts = shown.frames.count("cell"), sum(f.startswith("torch/") for f in shown.frames)
    assert counts == (users, torchs)


def test_transforms_work_after_an_error_while_a_tensor_was_printed(fail: Fail) -> None:
    fail(ONLY_HERE["out of memory, shown"][0])
    result = torch.vmap(lambda x: x.view(2, 2).sum())(torch.ones(3, 4, device="jax"))
    assert result.tolist() == [4, 4, 4]


def test_an_error_in_a_model_reads_like_this(fail: Fail) -> None:
    cpus = fail("torch.nn.Linear(4, 8, device='cpu')(torch.ones(5, 7, device='cpu'))").message
    assert "mat1 and mat2 shapes cannot be multiplied (5x7 and 4x8)" in cpus
    lines = fail("y = 1\nmodel(torch.ones(5, 7, device=D))").lines
    assert [re.sub(r":\d+,|(?<=>) \d+|(?<=-)-+| {9,}", "", line) for line in lines[3:]] == [
        "      1 y = 1",
        "-> model(torch.ones(5, 7, device=D))",
        "",
        "File torch/nn/modules/container.py in Sequential.forward",
        "-> input = module(input)",
        "File torch/nn/modules/linear.py in Linear.forward",
        "-> return F.linear(input, self.weight, self.bias)",
        "",
        f"RuntimeError: {cpus}",
    ]


def ours(shown: Shown) -> int:
    return sum("/jaxtorch/" in f"/{f}" for f in shown.frames)


@pytest.mark.parametrize(
    "cell", ["model(torch.ones(5, 4))", "jaxtorch.pure(model)(x.T)", "%%pure\ny = x @ x"]
)
def test_full_shows_all_also_of_the_last_error(
    shell: InteractiveShell, fail: Fail, cell: str
) -> None:
    assert ours(fail(cell)) == 0
    shell.run_cell("%jax config tracebacks=full").raise_error()
    again, last = fail(cell), fail("%tb")
    assert ours(again) == ours(last) > 2
    assert last.kind == again.kind
    shell.run_cell("%jax config tracebacks=short").raise_error()
    assert ours(fail("%tb")) == ours(fail(cell)) == 0


def test_the_error_itself_keeps_its_frames(shell: InteractiveShell, fail: Fail) -> None:
    result = shell.run_cell("try:\n    {}['a']\nexcept KeyError:\n    x @ x")
    error = result.error_in_exec
    files = [f.f_code.co_filename for f, _ in traceback.walk_tb(error.__traceback__)]
    assert any("/jaxtorch/" in f for f in files)
    assert any(
        "/jaxtorch/" in f.f_code.co_filename for f, _ in traceback.walk_tb(sys.last_traceback)
    )
    assert error.__context__ is not None
    assert not isinstance(error.__context__, KeyError)
    assert error.__suppress_context__


@pytest.mark.parametrize(
    "other", ["torch.ones(5, 4)", "None", "torch.ones(5, 4, device='meta')", "'text'"]
)
def test_an_error_of_the_general_path_does_not_follow_one_of_the_hot_path(other: str) -> None:
    """Also where nothing shortens it: in a log, in another shell, in a test."""
    x = torch.ones(5, 4, device="jax")
    with pytest.raises((RuntimeError, TypeError)) as caught:
        torch.add(x, eval(other))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain", "Minimal"])
@pytest.mark.parametrize("name", ["a CPU tensor for a model", "pure", "%%pure"])
def test_every_mode_of_ipython(shell: InteractiveShell, fail: Fail, mode: str, name: str) -> None:
    shell.run_cell(f"%xmode {mode}").raise_error()
    shown = fail(ONLY_HERE[name][0])
    text = "\n".join(shown.lines[:-1])
    assert "/jaxtorch/" not in text
    assert "During handling" not in text
    assert ONLY_HERE[name][3] in shown.lines[-1]


@pytest.mark.parametrize("cell", OTHERS)
def test_other_errors_look_as_before(
    bare: InteractiveShell, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(bare, "_showtraceback", lambda kind, value, parts: seen.append(parts))
    bare.run_cell(cell)
    bare.run_line_magic("load_ext", "jaxtorch")
    bare.run_cell(cell)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_unloading_restores_the_shell(bare: InteractiveShell) -> None:
    before = dict(vars(bare.InteractiveTB))
    for _ in range(2):
        bare.run_line_magic("load_ext", "jaxtorch")
        bare.run_line_magic("reload_ext", "jaxtorch")
        assert "structured_traceback" in vars(bare.InteractiveTB)
        bare.run_line_magic("unload_ext", "jaxtorch")
        assert vars(bare.InteractiveTB).keys() == before.keys()


def test_an_error_with_no_frame_of_the_user_is_shown_whole(
    shell: InteractiveShell, fail: Fail
) -> None:
    """Such as one in a hook of the extension, which IPython calls: nothing else says where it came from."""
    with pytest.raises(ValueError, match="tracebacks") as caught:
        jaxtorch.config.update(tracebacks="none")
    error = caught.value
    assert error.__traceback__ is not None
    inner = error.__traceback__.tb_next  # from jaxtorch's own frame on
    error = error.with_traceback(inner)
    parts = shell.InteractiveTB.structured_traceback(ValueError, error, inner)
    assert "options.py" in "".join(parts)
