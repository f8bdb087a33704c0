"""The words of `%jax`: completion, help, mistakes, seeds, the status."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError

from jaxtorch.magics.subcommands import SUBCOMMANDS
from jaxtorch.native import loading


def completions(shell: Any, line: str) -> list[str]:
    """What a notebook offers at the end of a line."""
    with provisionalcompleter():
        return [found.text for found in shell.Completer.completions(line, len(line))]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%jax o", ["on", "off"]),
        ("%jax se", ["seed"]),
        ("state = %jax st", ["status"]),
        ("    %jax sta", ["status"]),
    ],
)
def test_completion_offers_the_words_and_nothing_else(
    shell: Any, line: str, expected: list[str]
) -> None:
    assert completions(shell, line) == expected


def test_completion_offers_every_word_the_session_first(shell: Any) -> None:
    offered = completions(shell, "%jax ")
    assert offered[:4] == ["on", "off", "status", "seed"]
    assert sorted(offered) == sorted(SUBCOMMANDS)


def test_completion_elsewhere_is_untouched(shell: Any) -> None:
    assert "%jax" in completions(shell, "%ja")
    assert "on" not in completions(shell, "jaxtorch = o")
    assert not {"on", "off"} & set(completions(shell, "%jax seed o"))


def test_help_shows_the_words_and_the_arguments(shell: Any) -> None:
    text = shell.object_inspect_text("%jax")
    for part in ("%jax on", "%jax off", "%jax seed 0", "torch.manual_seed", "whole number"):
        assert part in text


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("onn", "`%jax on`"),
        ("of", "`%jax off`"),
        ("stats", "`%jax status`"),
        ("SEED 3", "`%jax seed`"),
        ("on now", "'now'"),
        ("seed", "`%jax seed 0`"),
        ("seed twelve", "'twelve'"),
        ("status --all", "--all"),
        ("help", "`%jax?`"),
        ("--help", "`%jax?`"),
        ("-h", "`%jax?`"),
        ("on --help", "`%jax?`"),
        ("status -h", "`%jax?`"),
    ],
)
def test_a_mistake_gets_one_line(shell: Any, capsys: Any, line: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)):
        shell.run_line_magic("jax", line)
    result = shell.run_cell(f"%jax {line}")
    captured = capsys.readouterr()
    assert not result.success
    assert len((captured.out + captured.err).strip().splitlines()) == 1


def test_a_seed_gives_the_same_numbers_again(shell: Any) -> None:
    shell.run_line_magic("jax", "seed 7")
    first = torch.randn(4, device="jax"), torch.rand(4, device="cpu")
    shell.run_line_magic("jax", "seed 7")
    second = torch.randn(4, device="jax"), torch.rand(4, device="cpu")
    shell.run_line_magic("jax", "seed 8")
    third = torch.randn(4, device="jax")
    assert first[0].tolist() == second[0].tolist() != third.tolist()
    assert first[1].tolist() == second[1].tolist()


def test_a_comment_may_follow(shell: Any) -> None:
    shell.run_cell("%jax seed 9  # as ever").raise_error()
    assert torch.initial_seed() == 9
    shell.user_ns["x"] = torch.ones(2, device="jax")
    shell.run_cell("%%pure --name twice  # the name of the program\ny = x * 2").raise_error()
    assert shell.user_ns["y"].tolist() == [2, 2]


def test_a_seed_may_be_an_expression_of_the_cell(shell: Any) -> None:
    shell.run_cell("n = 5\n%jax seed {n + 1}").raise_error()
    assert torch.initial_seed() == 6


@pytest.mark.parametrize("line", ["", "status"])
def test_status_says_what_the_device_is(shell: Any, line: str) -> None:
    kept = torch.zeros(1024, device="jax") + 1
    view = shell.run_line_magic("jax", line)
    text, html = repr(view), view._repr_html_()
    for part in (
        "Platform",
        "cpu",
        "Default device",
        "int64 and float64",
        loading.state(),
        "Compiled programs",
        torch.__version__,
    ):
        assert part in text
        assert part in html
    assert view.status.devices[0].allocated >= kept.numel() * 4
    assert view.status.compiled > 0
    assert "<script" not in html


def test_status_shows_what_ran_on_the_cpu(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxtorch.programs import stats

    monkeypatch.setattr(stats, "fallbacks", lambda: {"aten::<odd>": 3})
    view = shell.run_line_magic("jax", "")
    assert "aten::<odd> × 3" in repr(view)
    assert "aten::&lt;odd&gt; × 3" in view._repr_html_()
