"""What `%%pure` and `%%jit` refuse, in which words; and that after any failure all is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .cells import SETUP, fails, magic_output, run

LOSS = "logits = model(images)\nloss = F.cross_entropy(logits, labels)"


@pytest.fixture
def shell(shell: Any) -> Iterator[Any]:
    run(shell, SETUP)
    run(shell, "kept = []\ntable = {}\nseen = set()\nnorm = nn.BatchNorm1d(4)")
    run(shell, "def choose(x):\n    if x.sum() > 0:\n        return x\n    return -x")
    run(shell, "def count():\n    global counter\n    counter = 1")
    yield shell
    run(shell, "%jax off")


# (the cell below the magic, its line that is shown, words of what is wrong, words of what to write)
REFUSED = [
    ("y = 1\nimages += 1", "line 3: images += 1", "writes into `images`", "%%jit"),
    ("images[0] = 0", "line 2: images[0] = 0", "writes into `images`", "images = images + 1"),
    ("F.relu_(images)", "line 2: F.relu_(images)", "writes into `images`", "%%jit"),
    ("y = images.sum()\nif y > 0:\n    y = -y", "line 3: if y > 0:", "no value yet", "torch.where"),
    ("y = images.sum()\nwhile y > 0:\n    y = y - 1", "line 3: while y > 0:", "no value yet", "torch.cond"),
    ("assert (images < 99).all()", "line 2: assert", "no value yet", "--static"),
    ("y = choose(images)", "line 2: y = choose(images)", "no value yet", "torch.where"),
    ("y = images.sum().item()", "line 2: y = images.sum().item()", "no value yet", "next cell"),
    ("y = float(images.sum())", "line 2: y = float(", "no value yet", "next cell"),
    ("print(images)", "line 2: print(images)", "no value yet", "Print it in the next cell"),
    ("y = f'{images.sum():.2f}'", "line 2: y = f'", "no value yet", "next cell"),
    ("y = images.nonzero()", "line 2: y = images.nonzero()", "nonzero", "torch.where"),
    ("y = images[images > 0]", "line 2: y = images[images > 0]", "depends on its values", "torch.where"),
    ("y = images * 2\nkept.append(y)", "line 3: kept.append(y)", "changes the contents of `kept`", "next cell"),
    ("table['y'] = images * 2", "line 2: table['y']", "stores a tensor in `table['y']`", "%%jit"),
    ("count()", "", "a function assigns the global `counter`", "return the value"),
    ("torch.set_default_dtype(torch.float64)", "", "changes torch's default dtype", "cell of its own"),
    ("torch.set_default_device('cpu')", "", "changes torch's default device", "cell of its own"),
    ("y = (", "line 2: y = (", "never closed", ""),
]  # fmt: skip


@pytest.mark.parametrize("magic", ["pure", "jit"])
@pytest.mark.parametrize(("cell", "line", "what", "advice"), REFUSED, ids=[c[0] for c in REFUSED])
def test_a_refused_cell_says_what_where_and_what_to_write(
    shell: Any, capsys: Any, magic: str, cell: str, line: str, what: str, advice: str
) -> None:
    if magic == "jit" and any(w in what for w in ("writes into", "contents", "stores")):
        run(shell, f"%%jit\n{cell}")  # that is what it is for
        return
    values = shell.user_ns["images"].tolist()
    shown = fails(shell, capsys, f"%%{magic}\n{cell}")
    for part in (line, what, advice):
        assert part in shown
    assert len(shown.splitlines()) <= 4
    for internal in ("Traceback", "site-packages", "jaxtorch/", "Error: Error"):
        assert internal not in shown
    assert shell.user_ns["images"].tolist() == values
    names = shell.user_ns
    assert (names["kept"], names["table"], names["seen"]) == ([], {}, set())
    assert torch.get_default_dtype() == torch.float32
    assert torch.zeros(1).device.type == "jax"


@pytest.mark.parametrize("magic", ["%%pure", "%%jit"])
def test_containers_are_filled_at_each_run(shell: Any, magic: str) -> None:
    cell = "table['n'] = 3\nseen.add(3)\nkept.append(4)\ny = images * 2"
    for _ in range(3):
        run(shell, f"{magic}\n{cell}")
    names = shell.user_ns
    assert (names["kept"], names["table"], names["seen"]) == ([4] * 3, {"n": 3}, {3})


@pytest.mark.parametrize("body", [LOSS + "\nloss.backward()", "loss.backward()"])
def test_backward_belongs_into_the_next_cell(shell: Any, capsys: Any, body: str) -> None:
    run(shell, LOSS)
    before = [p.grad for p in shell.user_ns["model"].parameters()]
    shown = fails(shell, capsys, f"%%pure\n{body}")
    assert "fills .grad" in shown
    assert "loss.backward()" in shown
    assert "%%jit" in shown
    after = [p.grad for p in shell.user_ns["model"].parameters()]
    assert all(a is b for a, b in zip(after, before, strict=True))


def test_a_module_made_in_the_cell_is_refused(shell: Any, capsys: Any) -> None:
    shown = fails(shell, capsys, "%%pure\ny = 0\nlayer = nn.Linear(4, 2)\nz = layer(images)")
    assert "`layer`" in shown
    assert "in a cell of its own" in shown


def test_an_error_of_the_code_shows_the_cell_and_none_of_ours(shell: Any, capsys: Any) -> None:
    shown = fails(shell, capsys, "%%pure\ny = images * 2\n\nz = y @ y")
    assert "RuntimeError" in shown
    assert "z = y @ y" in shown
    for internal in ("cells/program", "captured.py", "run_cell_magic", "make_jaxpr"):
        assert internal not in shown


def test_a_name_that_is_not_there_is_a_name_error(shell: Any, capsys: Any) -> None:
    assert "name 'imagse' is not defined" in fails(shell, capsys, "%%pure\ny = imagse * 2")


def test_a_modules_backward_hook_runs_in_a_cell(shell: Any) -> None:
    run(shell, "handle = model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 0,))")
    run(shell, f"%%pure\n{LOSS}")
    run(shell, "model.zero_grad()\nloss.backward()\nhandle.remove()")
    model = shell.user_ns["model"]
    assert not model[0].weight.grad.any()
    assert model[2].weight.grad.any()


def test_await_and_other_cell_magics_are_refused_in_a_line(shell: Any, capsys: Any) -> None:
    assert "'await' outside function" in fails(shell, capsys, "%%pure\nawait f()")
    assert "%%time is another cell magic" in fails(shell, capsys, "%%pure\n%%time\ny = 1")


FAILURES = [
    "norm(images)\nF.dropout(images, 0.5)\nmodel.flag = 3\nraise ValueError('stop')",
    "norm(images)\nF.dropout(images, 0.5)\nmodel.flag = 3\nimages.sum().item()",
    "norm(images)\nF.dropout(images, 0.5)\nmodel.flag = 3\nraise KeyboardInterrupt",
    "norm(images)\nmodel.flag = 3\nmodel[1].p = 0.1\nlogits = model(images)\nkept.append({logits})",
]


@pytest.mark.parametrize("magic", ["pure", "jit"])
@pytest.mark.parametrize("cell", FAILURES)
def test_a_failure_leaves_everything_as_it_was(
    shell: Any, capsys: Any, magic: str, cell: str
) -> None:
    good = "%%pure\nout = images * 2"
    magic_output(shell, capsys, good)
    run(shell, LOSS + "\nloss.backward()")
    before = state(shell)
    fails(shell, capsys, f"%%{magic}\n{cell}")
    assert state(shell) == before
    assert magic_output(shell, capsys, good).startswith("pure: cached")


def state(shell: Any) -> Any:
    """Everything that a cell could leave behind."""
    model, norm = shell.user_ns["model"], shell.user_ns["norm"]
    tensors = [*norm.buffers(), *model.parameters(), *(p.grad for p in model.parameters())]
    return (
        [None if t is None else t.tolist() for t in tensors],
        torch.jax.get_rng_state().tolist(),  # type: ignore[attr-defined]
        sorted(vars(model)),
        model[1].p,
        list(shell.user_ns["kept"]),
        torch.get_default_device(),
        torch.is_grad_enabled(),
    )


@pytest.mark.parametrize("magic", ["pure", "jit"])
@pytest.mark.parametrize("line", ["print(images)", "y = f'{images}'", "y = str(images * 2)"])
def test_a_refused_print_leaves_torch_func_as_it_was(
    shell: Any, capsys: Any, magic: str, line: str
) -> None:
    x = torch.arange(6.0, device="cpu").view(2, 3)
    expected = 2 * x
    fails(shell, capsys, f"%%{magic}\n{line}")
    # torch's printing turns torch.func off for as long as its frame lives, and the shell keeps the last error.
    result = torch.func.vmap(torch.func.grad(lambda v: (v * v).sum()))(x)
    torch.testing.assert_close(result, expected)
