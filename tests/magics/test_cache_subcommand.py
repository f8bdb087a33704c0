"""`%jax cache` in a real shell."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.error import UsageError

import jaxtorch
from jaxtorch.insight import events
from jaxtorch.insight.programs import program
from jaxtorch.programs.site import cell_of_file


def run(shell: Any, code: str) -> Any:
    result = shell.run_cell(code, store_history=True)
    result.raise_error()
    return result


def test_cells_are_counted_by_their_numbers(shell: Any) -> None:
    run(shell, "import torch\nimages = torch.ones(4, 3, device='jax')")
    run(shell, "%%pure --name counted_cell -q\n\n# a comment\ny = images * 2")
    again = run(shell, "%%pure --name counted_cell -q\n\n# a comment\ny = images * 2")
    run(shell, "images = torch.ones(6, 3, device='jax')")
    number = run(
        shell, "%%pure --name counted_cell -q\n\n# a comment\ny = images * 2"
    ).execution_count
    (row,) = [
        r
        for r in shell.run_line_magic("jax", "cache").data()["rows"]
        if r["name"] == "counted_cell"
    ]
    assert (row["kind"], row["calls"], row["hits"], row["traced"]) == ("pure", 3, 1, 2)
    assert row["location"] == f"[{number}]:4"
    [note] = row["detail"][0]["notes"]
    assert note["text"] == f"retraced: images[0] 4 -> 6 ([{number}]:4)"
    assert again.execution_count == 3
    cells = {
        c["location"]: c["programs"] for c in shell.run_line_magic("jax", "cache").data()["cells"]
    }
    assert cells["[2]"] >= 1
    assert cells[f"[{number}]"] >= 1


def test_a_cell_without_a_name_is_called_by_its_first_line(shell: Any) -> None:
    run(shell, "import torch\nimages = torch.ones(4, 3, device='jax')")
    for magic, code in (("pure", "h = images @ images.T"), ("jit", "images += 3.5")):
        run(shell, f"%%{magic} -q\n\n# a comment\n{code}\nlast = images.sum()")
        view = shell.run_line_magic("jax", "cache")
        (row,) = [r for r in view.data()["rows"] if r["name"] == code]
        assert (row["kind"], row["opened"]) == (magic, False)
        assert row["detail"][0]["title"] == f"Programs of {code}"
        shown = run(shell, "%jax hlo").result
        assert shown.text().startswith(f"Program #{program(code).id} {code} ({magic}, cell [")
    run(shell, "images = torch.ones(5, 3, device='jax')")
    run(shell, "%%jit -q\n\n# a comment\nimages += 3.5\nlast = images.sum()")
    (row,) = [
        r
        for r in shell.run_line_magic("jax", "cache").data()["rows"]
        if r["name"] == "images += 3.5"
    ]
    assert row["opened"]


def test_a_constant_of_a_cell_is_the_reason(shell: Any) -> None:
    run(shell, "import torch\nimages = torch.ones(4, 3, device='jax')\np = 0.5")
    run(shell, "%%pure --name by_constant -q\ny = images * p")
    run(shell, "p = 0.3")
    run(shell, "%%pure --name by_constant -q\ny = images * p")
    assert program("by_constant").reason == "p 0.5 -> 0.3"
    assert "retraced: p 0.5 -> 0.3" in repr(
        shell.run_line_magic("jax", "cache --filter by_constant")
    )


def test_a_cell_that_is_traced_too_often_warns_with_its_cause(shell: Any) -> None:
    before = jaxtorch.config.max_traces
    shell.run_line_magic("jax", "config max_traces=2")
    try:
        run(shell, "import torch")
        cell = "%%pure --name often -q\ny = images * 2"
        for n in (3, 4):
            run(shell, f"images = torch.ones({n}, device='jax')")
            run(shell, cell)
        run(shell, "images = torch.ones(5, device='jax')")
        with pytest.warns(UserWarning, match="`often` was traced 3 times") as caught:
            run(shell, cell)
    finally:
        jaxtorch.config.update(max_traces=before)
    assert "images[0] 4 -> 5" in str(caught[0].message)


def test_clear_and_keep(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "import torch, jaxtorch\nf = jaxtorch.pure(lambda x: x.cos(), name='of_the_word')")
    run(shell, "f(torch.ones(3, device='jax')) is None")
    capsys.readouterr()
    assert shell.run_line_magic("jax", "cache --keep of_the_word") is None
    assert "Kept of_the_word" in capsys.readouterr().out
    assert shell.run_line_magic("jax", "cache --clear of_the_word") is None
    assert capsys.readouterr().out == "Dropped 1 program: the next call recompiles.\n"
    row = re.compile(r"^of_the_word +pure ", re.MULTILINE)
    assert not row.search(repr(shell.run_line_magic("jax", "cache --filter of_the_word")))
    run(shell, "f(torch.ones(3, device='jax')) is None")
    assert row.search(repr(shell.run_line_magic("jax", "cache --filter of_the_word")))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cache --sort tim", "nearest to 'tim' is `time`"),
        ("cache --keep nosuchprogram", "--keep"),
        ("cache --clear nosuchprogram", "--clear"),
        ("cache --clear --keep x", "not both"),
        ("cache --nosuch", "no option '--nosuch'"),
    ],
)
def test_a_mistake_is_one_line(shell: Any, line: str, message: str) -> None:
    run(shell, "import torch\ntorch.ones(3, device='jax').sinc().sum().item()")
    with pytest.raises(UsageError) as caught:
        shell.run_line_magic("jax", line)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_extension_listens_while_it_is_loaded(bare: Any) -> None:
    events.stop()
    bare.run_line_magic("load_ext", "jaxtorch")
    assert events.recording()
    assert cell_of_file
    bare.run_line_magic("unload_ext", "jaxtorch")
    assert not events.recording()
    assert not cell_of_file


def test_the_number_in_a_traceback_is_the_cells_own(shell: Any) -> None:
    result = shell.run_cell("%%pure\nimport torch\nx = 1 / 0", store_history=True)
    tb = result.error_in_exec.__traceback__
    while tb.tb_next is not None:
        tb = tb.tb_next
    file = tb.tb_frame.f_code.co_filename
    assert shell.compile.format_code_name(file) == ("Cell", f"In[{result.execution_count}]")


def test_a_jit_of_the_users_is_listed_and_can_be_looked_at(shell: Any) -> None:
    run(
        shell,
        "import jax, jax.numpy as jnp\n@jax.jit\ndef by_user(x):\n    y = jnp.sin(x)\n    return y * 3",
    )
    number = run(shell, "y = by_user(jnp.ones(43))").execution_count
    view = shell.run_line_magic("jax", "cache --filter by_user")
    (row,) = [r for r in view.data()["rows"] if r["name"] == "by_user"]
    assert (row["kind"], row["location"], row["calls"]) == ("jax.jit", f"[{number}]:1", None)
    assert "JAX does not report how often a jax.jit runs" in " ".join(view.text().split())
    for stage, word in (("jaxpr", "= sin"), ("stablehlo", "stablehlo.sine"), ("hlo", "sine(")):
        shown = run(shell, f"%jax hlo by_user --stage {stage}").result
        assert word in shown.text()
        lines = {p.line for p in shown.reading.listing(stage).all_locations if p.cell is not None}
        assert lines >= {4, 5}
