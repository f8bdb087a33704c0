"""What Tab offers on the line of a magic: what may come there, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.completer import provisionalcompleter

from jaxtorch.base.options import OPTIONS
from jaxtorch.insight.hlo.listing import STAGES
from jaxtorch.insight.programs import programs
from jaxtorch.magics.subcommands import SUBCOMMANDS
from jaxtorch.magics.subcommands.config import _change
from jaxtorch.widgets.cache import SORTS

from .cells import run


@pytest.fixture
def ready(shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session with two tensors, a function and a program, in a folder with a file."""
    monkeypatch.chdir(tmp_path)
    Path("s_file.py").write_text("")
    run(shell, "import torch\nimport torch.nn.functional as F")
    run(shell, "images = torch.ones(3, device='jax'); image_size = 3")
    run(shell, "def image_loss(x): return x.sum()")
    run(shell, "%%pure -q --name imagery\nout = image_loss(images)")
    return shell


def after(shell: Any, text: str, body: str = "") -> list[str]:
    """What the end of the line becomes with each of the completions."""
    with provisionalcompleter():
        found = shell.Completer.completions(f"{text}\n{body}" if body else text, len(text))
        return [text[c.start : c.start] + c.text for c in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%jax hlo --stage ", list(STAGES)),
        ("%jax hlo --stage j", [s for s in STAGES if s.startswith("j")]),
        ("%jax hlo imagery --stage j", [s for s in STAGES if s.startswith("j")]),
        ("%jax hlo --stage=", list(STAGES)),
        ("%jax hlo imagery --stage=j", [s for s in STAGES if s.startswith("j")]),
        ("%jax cache --sort ", list(SORTS)),
        ("%jax cache --sort=", list(SORTS)),
        ("%%pure --precision=h", ["high", "highest"]),
        ("%%pure --quiet=", []),
        ("%jax config fallback=", ["fallback=warn", "fallback=silent", "fallback=error"]),
        ("%jax config fallback=e", ["fallback=error"]),
        ("%jax config check=none compile_cache=", ["compile_cache=False", "compile_cache=True"]),
        ("%jax config max_tr", ["max_traces="]),
        ("%%pure --precision h", ["high", "highest"]),
    ],
)
def test_an_option_offers_its_values(ready: Any, line: str, expected: list[str]) -> None:
    assert after(ready, line) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_every_value_that_is_offered_may_be_set(ready: Any, name: str) -> None:
    offered = [_change(setting) for setting in after(ready, f"%jax config {name}=")]
    assert offered
    for option, value in offered:
        assert option == name
        assert OPTIONS[name].metadata["is_allowed"](value)


@pytest.mark.parametrize("magic", ["pure", "jit"])
@pytest.mark.parametrize("option", ["--static", "--donate"])
def test_the_variables_of_the_cell_are_offered(ready: Any, magic: str, option: str) -> None:
    body = "y = F.relu(images) * image_size + image_loss(images)"
    line = f"%%{magic} {option} "
    assert after(ready, line, body)[:2] == ["images", "image_size"]
    assert "image_loss" not in after(ready, line, body)
    assert after(ready, f"{line}im", body) == ["images", "image_size"]
    for unfinished in ("", "y = images *"):  # while the cell is being written: any tensor
        assert after(ready, f"{line}im", unfinished) == ["images"]
    assert "images" not in after(ready, f"%%{magic} ", body)


@pytest.mark.parametrize(
    "line",
    [
        "%jax profile im",
        "%jax profile --repeat 3 im",
        "%jax lines im",
        "%jax time im",
        "x = %jax profile im",
        "%jax devices im",
        "%jax memory --why im",
    ],
)
def test_code_offers_python_names(ready: Any, line: str) -> None:
    offered = after(ready, line)
    assert {"images", "image_loss", "image_size"} <= set(offered)
    assert not [w for w in offered if not w.startswith("im")]


@pytest.mark.parametrize("command", ["devices", "memory --why", "show", "profile", "lines", "time"])
def test_where_no_code_is_typed_yet_only_the_users_variables(ready: Any, command: str) -> None:
    line = f"%jax {command} "
    offered = [
        text.removeprefix(line) for text in after(ready, line) if "--" not in text[len(line) :]
    ]
    assert set(offered) >= {"images", "image_loss", "image_size", "out"}
    assert not {"torch", "abs", "exit", "get_ipython", "In"} & set(offered)
    tensors = [isinstance(ready.user_ns[name], torch.Tensor) for name in offered]
    assert tensors == sorted(tensors, reverse=True)


def test_code_offers_attributes_and_arguments(ready: Any) -> None:
    assert "images.sum" in {
        f"images.{w.lstrip('.').removeprefix('images.')}"
        for w in after(ready, "%jax profile image_loss(images.su")
    }
    assert "--repeat" in after(ready, "%jax profile --re")
    assert "images" not in after(ready, "%jax profile --repeat ")


def test_no_file_is_offered_where_none_is_asked_for(ready: Any) -> None:
    lines = [
        f"{sign}jax {name} {word}"
        for name in SUBCOMMANDS
        for word in ("", "s", "--")
        for sign in ("%", "%%")
    ]
    lines += [
        f"%jax {name} {o} s" for name, c in SUBCOMMANDS.items() for o in c.options if o != "--save"
    ]
    lines += ["%%pure s", "%%jit --name s", "%jax nosuch s", "%jax s_f"]
    assert [line for line in lines if "s_file.py" in after(ready, line)] == []
    for name in ("hlo", "profile"):
        assert after(ready, f"%jax {name} --save s_") == ["s_file.py"]


@pytest.mark.parametrize("command", ["hlo", "memory", "cache --keep", "cache --filter"])
def test_programs_without_the_eager_operators(ready: Any, command: str) -> None:
    run(ready, "kept = images.lgamma()")
    assert "lgamma.default" in {p.name for p in programs() if p.kind == "eager"}
    offered = after(ready, f"%jax {command} ")
    assert "imagery" in offered
    assert not [w for w in offered if w.endswith(".default")]
    assert "lgamma.default" in after(ready, f"%jax {command} lgamma.d")


def test_an_option_is_offered_once_and_a_short_one_by_its_long_form(ready: Any) -> None:
    assert "--stage" not in after(ready, "%jax hlo --stage hlo --")
    assert "--backward" in after(ready, "%jax hlo --stage hlo --")
    offered = after(ready, "%%pure ")
    assert "--quiet" in offered
    assert "-q" not in offered


def test_above_a_cell_only_what_takes_a_cell(ready: Any) -> None:
    assert set(after(ready, "%%jax ")) == {n for n, c in SUBCOMMANDS.items() if c.cell}
    assert not {"images", "image_loss"} & set(
        after(ready, "%%jax profile im", "image_loss(images)")
    )
