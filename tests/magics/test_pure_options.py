"""The options of `%%pure`, its help and completion, and cells beside other tools of IPython."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

from .cells import LOSS, SETUP, fails, magic_output, run, same


@pytest.fixture
def shell(shell: Any) -> Iterator[Any]:
    run(shell, SETUP)
    yield shell
    run(shell, "%jax off")


def test_quiet_says_nothing(shell: Any, capsys: Any) -> None:
    capsys.readouterr()
    run(shell, "%%pure -q\ny = images * 2")
    assert capsys.readouterr().out == ""


def test_no_grad(shell: Any) -> None:
    run(shell, LOSS.replace("%%pure", "%%pure --no-grad"))
    assert not shell.user_ns["loss"].requires_grad
    run(shell, LOSS)
    assert shell.user_ns["loss"].requires_grad


def test_time_prints_as_timeit_does(shell: Any, capsys: Any) -> None:
    capsys.readouterr()
    run(shell, "%%pure --time\ny = images * 2")
    assert re.search(
        r"per loop \(mean . std\. dev\. of 7 runs, [\d,]+ loops each\)", capsys.readouterr().out
    )
    same(shell.user_ns["y"], shell.user_ns["images"] * 2)


def test_static_lets_a_cell_branch_on_a_tensor(shell: Any, capsys: Any) -> None:
    run(shell, "flag = torch.tensor([True])")
    cell = "%%pure --static flag\nif flag:\n    out = images * 2\nelse:\n    out = images * 3"
    assert "traced" in magic_output(shell, capsys, cell)
    assert "cached" in magic_output(shell, capsys, cell)
    same(shell.user_ns["out"], shell.user_ns["images"] * 2)
    run(shell, "flag = ~flag")
    assert "flag has different contents" in magic_output(shell, capsys, cell)
    same(shell.user_ns["out"], shell.user_ns["images"] * 3)


def test_donate_gives_the_tensor_up(shell: Any) -> None:
    import weakref

    run(shell, "state = torch.ones(4)\nspare = torch.ones(4)")
    gone = weakref.ref(shell.user_ns["spare"])
    run(shell, "%%pure --donate state spare\nstate = state + spare")
    assert shell.user_ns["state"].tolist() == [2.0] * 4
    assert "spare" not in shell.user_ns
    assert gone() is None


def test_precision_is_the_programs(shell: Any, capsys: Any) -> None:
    cell = "%%pure --precision {}\ny = images @ images.T"
    for word in ("highest", "default"):
        assert "1st" in magic_output(shell, capsys, cell.format(word))
    same(shell.user_ns["y"], shell.user_ns["images"] @ shell.user_ns["images"].T)


def test_the_name_is_the_programs(shell: Any) -> None:
    from jaxtorch.programs import stats

    run(shell, "%%pure --name digits_loss\ny = images * 2")
    assert stats.compiled[-1].name == "digits_loss"


MISTAKES = [
    ("--nmae x", "The nearest is --name."),
    ("--stattic x", "The nearest is --static."),
    ("images", "not 'images'"),
    ("--static imagse", "The nearest is images."),
    ("--donate model", "`model` is not a tensor"),
    ("--precision hi", "'default', 'high', 'highest'"),
]


@pytest.mark.parametrize(("line", "hint"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_gets_one_line(shell: Any, capsys: Any, line: str, hint: str) -> None:
    shown = fails(shell, capsys, f"%%pure {line}\ny = model(images)")
    assert hint in shown
    assert len(shown.splitlines()) == 1


def test_help_and_completion(shell: Any) -> None:
    def completions(shell: Any, line: str, body: str = "") -> list[str]:
        with provisionalcompleter():
            matches = shell.Completer.completions(f"{line}\n{body}", len(line))
            return [completion.text for completion in matches]

    text = shell.object_inspect_text("%%pure")
    for part in ("--static", "--no-grad", "loss.backward()", "%%jit"):
        assert part in text
    assert {"--name", "--no-grad"} <= set(completions(shell, "%%pure --n"))
    assert completions(shell, "%%pure --static im", "y = images * 2") == ["images"]
    assert completions(shell, "%%pure --precision h") == ["high", "highest"]
    assert "--time" in completions(shell, "%%jit --t")


@pytest.mark.parametrize("magic", ["pure", "jit"])
def test_debug_print_prints_at_every_run_of_the_cell(shell: Any, capfd: Any, magic: str) -> None:
    run(shell, "import jaxtorch")
    for _ in range(3):
        capfd.readouterr()
        run(shell, f"%%{magic} -q\njaxtorch.debug.print('{{}}', images.numel() + 0 * labels.sum())")
        assert capfd.readouterr().out.splitlines() == ["20"]


def test_autoreload_of_an_edited_file_traces_again(
    shell: Any, capsys: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # whose times are whole seconds
    file = tmp_path / "edited_layers.py"
    source = "FACTOR = {}\n\ndef scaled(x):\n    return x * {} * FACTOR\n"
    file.write_text(source.format(2, 1))
    run(shell, "%load_ext autoreload")
    run(shell, "%autoreload 2")
    run(shell, "import edited_layers\nfrom edited_layers import scaled")
    cell = "%%pure\nout = scaled(images) + edited_layers.scaled(images)"
    magic_output(shell, capsys, cell)
    assert magic_output(shell, capsys, cell).startswith("pure: cached")
    for i, (factor, number) in enumerate([(2, 3), (5, 3)]):
        file.write_text(source.format(factor, number))
        later = time.time() + 10 * (i + 1)
        os.utime(file, (later, later))
        assert magic_output(shell, capsys, cell).startswith("pure: retraced")
        same(shell.user_ns["out"], shell.user_ns["images"] * (factor * number * 2))
    assert magic_output(shell, capsys, cell).startswith("pure: cached")
    run(shell, "%autoreload 0")
    sys.modules.pop("edited_layers")
