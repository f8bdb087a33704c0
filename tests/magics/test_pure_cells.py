"""`%%pure`: what a cell gives, when it is retraced, what it refuses, and that a failure leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from jaxtorch.magics.cells import compile_cell

from .cells import LOSS, SETUP, magic_output, run, same


@pytest.fixture
def shell(shell: Any) -> Iterator[Any]:
    run(shell, SETUP)
    yield shell
    run(shell, "%jax off")


# -- what a cell gives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cached", [False, True])
def test_values_and_gradients_are_those_of_the_cell_without_the_magic(
    shell: Any, cached: bool
) -> None:
    run(shell, "model.eval()")
    body = LOSS.removeprefix("%%pure\n")
    run(shell, body + "\nloss.backward()\nexpected = [loss, *(p.grad for p in model.parameters())]")
    for _ in range(1 + cached):
        run(shell, "model.zero_grad()")
        run(shell, LOSS)
        run(shell, "loss.backward()")
    results = [shell.user_ns["loss"], *(p.grad for p in shell.user_ns["model"].parameters())]
    for one, other in zip(results, shell.user_ns["expected"], strict=True):
        same(one, other)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("total = 0\nfor i in range(3):\n    total = total + images * i", "total"),
        ("with torch.no_grad() as block:\n    out = images * 2", "out"),
        ("from math import pi\nout = images * pi", "out"),
        ("import math as m\nout = images * m.e", "out"),
        ("from math import *\nout = images * tau", "out"),
        ("parts = [row * 2 for row in images]\nout = torch.stack(parts)", "out"),
        ("shape = f'{tuple(images.shape)}'\nout = images + len(shape)", "out"),
        ("assert images.shape[0] > 1, 'too few'\nout = images.mT", "out"),
        ("def f(x):\n    return g(x) + 1\ndef g(x):\n    return x * 3\nout = f(images)", "out"),
        ("class Net(nn.Module):\n    def forward(self, x):\n        return x * 2\nout = Net()(images)", "out"),
        ("if (n := len(images)) > 2:\n    out = images * n\nelse:\n    out = images", "out"),
        ("try:\n    out = images @ images\nexcept RuntimeError:\n    out = images @ images.T", "out"),
        ("out = {'a': images, 'b': (images + 1, 2)}['b'][0]", "out"),
        ("first, *rest = images\nout = sum(rest)", "out"),
        ("out = images[1:, ::2].sum(0)", "out"),
        ("temporary = images * 2\nout = temporary + 1\ndel temporary", "out"),
        ("out = torch.where(images > 0, images, 0.0).relu()", "out"),
        ("images = images + 1", "images"),
        ("images: torch.Tensor = images * 2", "images"),
    ],
)  # fmt: skip
def test_any_ordinary_python(shell: Any, body: str, name: str) -> None:
    names = dict(shell.user_ns)
    run(shell, body)
    expected = shell.user_ns[name]
    after = {n for n in shell.user_ns if n not in names}
    for _ in range(2):
        for n in after:
            shell.user_ns.pop(n, None)
        shell.user_ns.update(names)
        run(shell, "%%pure\n" + body)
        same(shell.user_ns[name], expected)
        assert {n for n in shell.user_ns if n not in names} == after


def test_the_last_expression_shows_unless_a_semicolon_ends_it(shell: Any) -> None:
    same(run(shell, "%%pure\ny = images * 2\ny.sum()"), shell.user_ns["images"].sum() * 2)
    assert run(shell, "%%pure\ny = images * 2\ny.sum();") is None
    assert run(shell, "%%pure\ny = images * 2") is None
    assert run(shell, "%%pure\nimages.shape") == (5, 4)


def test_an_input_that_is_given_back_is_itself(shell: Any) -> None:
    run(shell, "weight = torch.ones(4, requires_grad=True)")
    for _ in range(2):
        run(
            shell,
            "%%pure\nalias = images\nown = weight\npart = model[0].weight\nout = images * weight",
        )
        names = shell.user_ns
        assert names["alias"] is names["images"]
        assert names["own"] is names["weight"]
        assert names["part"] is names["model"][0].weight


def test_gradients_flow_through_containers_and_earlier_cells(shell: Any) -> None:
    run(shell, "weight = torch.ones(4, requires_grad=True)\nhidden = images * weight")
    run(shell, "%%pure\nboth = {'sum': hidden.sum(), 'rest': [hidden * 2]}")
    run(shell, "(both['sum'] + both['rest'][0].sum()).backward()")
    same(shell.user_ns["weight"].grad, shell.user_ns["images"].sum(0) * 3)


def test_functions_of_other_cells_see_the_names_that_the_cell_sets(shell: Any) -> None:
    run(shell, "def scaled():\n    return images * factor")
    for _ in range(2):
        run(shell, "%%pure\nfactor = images.sum()\nout = scaled()")
        images = shell.user_ns["images"]
        same(shell.user_ns["out"], images * images.sum())


def test_a_name_that_a_loop_of_no_rounds_does_not_set_is_read(shell: Any) -> None:
    run(shell, "out = torch.zeros(2)\nrounds = 0")
    cell = "%%pure\nfor i in range(rounds):\n    out = images * i\nlast = out + 1"
    run(shell, cell)
    assert shell.user_ns["last"].tolist() == [1.0, 1.0]
    run(shell, "out = torch.ones(2)")
    run(shell, cell)
    assert shell.user_ns["last"].tolist() == [2.0, 2.0]


def test_tensors_and_modules_on_the_cpu_are_borrowed(shell: Any, capsys: Any) -> None:
    run(shell, "%jax off")
    run(shell, "x = torch.randn(3, 4)\nlinear = nn.Linear(4, 2)")
    cell = "%%pure\nout = linear(x) + torch.ones(2)\nloss = out.sum()"
    for expected in ("traced", "cached, 2 in, 2 out"):
        assert expected in magic_output(shell, capsys, cell)
        run(shell, "loss.backward()")
    names = shell.user_ns
    assert names["out"].device.type == "cpu"
    same(names["out"], names["linear"](names["x"]) + 1)
    same(names["linear"].weight.grad, 2 * names["x"].sum(0).expand(2, 4))
    assert isinstance(names["linear"].weight, torch.nn.Parameter)


def test_dropout_differs_and_running_statistics_move(shell: Any) -> None:
    run(shell, "norm = nn.BatchNorm1d(4)\ntwin = nn.BatchNorm1d(4)")
    for _ in range(3):
        run(shell, "%%pure\nout = norm(images)\ndropped = F.dropout(images, 0.5)")
        run(shell, "twin(images)")
        first = shell.user_ns["dropped"]
    same(shell.user_ns["norm"].running_mean, shell.user_ns["twin"].running_mean)
    run(shell, "%%pure\nout = norm(images)\ndropped = F.dropout(images, 0.5)")
    assert not torch.equal(first.cpu(), shell.user_ns["dropped"].cpu())


# -- the report -------------------------------------------------------------------------------------------------


def test_it_says_that_it_traced_and_that_it_did_not(shell: Any, capsys: Any) -> None:
    assert re.fullmatch(
        r"pure: traced \(1st; \d+ ms trace, \d+ ms XLA\)", magic_output(shell, capsys, LOSS)
    )
    assert magic_output(shell, capsys, LOSS) == "pure: cached, 3 in, 2 out"
    run(shell, "images = torch.cat([images, images])\nlabels = torch.cat([labels, labels])")
    assert "retraced: images[0] 5 -> 10, labels[0] 5 -> 10 (2nd; " in magic_output(
        shell, capsys, LOSS
    )
    assert magic_output(shell, capsys, LOSS) == "pure: cached, 3 in, 2 out"


CHANGES = [
    ("images = images.double()\nmodel.double()", "images float32 -> float64"),
    ("model[1].p = 0.25", "model.1.p 0.5 -> 0.25"),
    ("model.eval()", "model.1.training True -> False"),
    ("handle = model[0].register_forward_hook(lambda m, i, o: o * 2)", "a hook was added to model.0"),
    ("model[2] = nn.Linear(8, 3)", "model.2 is a different Linear"),
    ("model[0].weight = nn.Parameter(torch.ones(8, 4))", "model.0.weight is a different tensor"),
    ("model.append(nn.ReLU())", "model.3 is new"),
    ("model = nn.Linear(4, 3)", "model is a different Linear"),
    ("images = images[:3]\nlabels = labels[:3]", "images[0] 5 -> 3"),
    ("model.requires_grad_(False)", "model.0.weight no longer requires a gradient, model.0.bias no longer"),
    ("torch.set_float32_matmul_precision('high')", "torch.get_float32_matmul_precision() 'highest' -> 'high'"),
]  # fmt: skip


@pytest.fixture
def matmul_precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("matmul_precision")
@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[c for c, _ in CHANGES])
def test_what_changed_is_said(shell: Any, capsys: Any, change: str, reason: str) -> None:
    magic_output(shell, capsys, LOSS)
    run(shell, change)
    assert f"retraced: {reason}" in magic_output(shell, capsys, LOSS)
    assert magic_output(shell, capsys, LOSS).startswith("pure: cached")


def test_an_input_that_became_a_list_fails_as_it_does_without_the_magic(
    shell: Any, capsys: Any
) -> None:
    magic_output(shell, capsys, LOSS)
    run(shell, "images = [images]\nmodel = nn.Identity()")
    plain = shell.run_cell(LOSS.removeprefix("%%pure\n")).error_in_exec
    assert isinstance(plain, TypeError)
    capsys.readouterr()
    assert not shell.run_cell(LOSS).success
    assert str(plain).splitlines()[0] in capsys.readouterr().out


GUARDED = [
    ("scale = 2", "def f(x):\n    return x * scale", "scale = 3", "scale 2 -> 3"),
    ("scale = 2", "def f(x):\n    return x * scale", "scale = 2.5", "scale 2 -> 2.5"),
    ("", "def f(x):\n    return x * 2", "def f(x):\n    return x * 3", "function f was redefined"),
    ("def g(x):\n    return x", "def f(x):\n    return g(x)", "def g(x):\n    return -x", "function g was"),
    ("", "def f(x, by=2):\n    return x * by", "f.__defaults__ = (4,)", " 2 -> 4"),
    ("", "def outer(n):\n    return lambda x: x * n\nf = outer(2)", "f = outer(5)", "f.n 2 -> 5"),
    ("", "f = lambda x: x + 1", "f = lambda x: x + 2", "function f was redefined"),
    ("import functools", "f = functools.partial(torch.add, other=1)",
     "f = functools.partial(torch.add, other=2)", "f has different contents"),
    ("", "class f(nn.Module):\n    def forward(self, x):\n        return x * 2\nf = f()",
     "class f(nn.Module):\n    def forward(self, x):\n        return x * 3\nf = f()", "f is a different f"),
    ("class Twice:\n    by = 2", "def f(x):\n    return x * Twice.by", "Twice.by = 3", "Twice.by 2 -> 3"),
    ("class C:\n    pass\nc = C()\nc.by = 2", "def f(x):\n    return x * c.by", "c.by = 7", "c.by 2 -> 7"),
    ("sizes = [1, 2]", "def f(x):\n    return x * sizes[1]", "sizes[1] = 9", "sizes[1] 2 -> 9"),
    ("options = {'by': 2}", "def f(x):\n    return x * options['by']", "options['by'] = 3",
     "options['by'] 2 -> 3"),
    ("import numpy as np\ntable = np.ones(4)", "def f(x):\n    return x * torch.tensor(table)",
     "table[0] = 5", "table has different contents"),
    ("other = torch.ones(4)", "def f(x):\n    return x * other", "other = torch.ones(1)", "other[0] 4 -> 1"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "function", "change", "reason"), GUARDED)
def test_never_a_stale_program(
    shell: Any, capsys: Any, given: str, function: str, change: str, reason: str
) -> None:
    run(shell, f"{given}\n{function}")
    cell = "%%pure\nout = f(images)"
    magic_output(shell, capsys, cell)
    assert magic_output(shell, capsys, cell).startswith("pure: cached")
    run(shell, change)
    output = magic_output(shell, capsys, cell)
    assert "retraced: " in output
    assert reason in output
    same(shell.user_ns["out"], run(shell, "f(images)"))
    assert magic_output(shell, capsys, cell).startswith("pure: cached")


def test_a_method_defined_anew_on_its_class_is_seen(shell: Any, capsys: Any) -> None:
    run(
        shell, "class Net(nn.Module):\n    def forward(self, x):\n        return x * 2\nnet = Net()"
    )
    cell = "%%pure\nout = net(images)"
    magic_output(shell, capsys, cell)
    run(shell, "def forward(self, x):\n    return x * 5\nNet.forward = forward")
    assert "function net.forward was redefined" in magic_output(shell, capsys, cell)
    same(shell.user_ns["out"], shell.user_ns["images"] * 5)


def test_a_file_that_is_reloaded_is_seen(
    shell: Any, capsys: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    file = tmp_path / "my_own_model.py"
    file.write_text("def f(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    run(shell, "import importlib, my_own_model")
    cell = "%%pure\nout = my_own_model.f(images)"
    magic_output(shell, capsys, cell)
    file.write_text("def f(x):\n    return x * 30\n")
    run(shell, "importlib.reload(my_own_model)")
    assert "function my_own_model.f was redefined" in magic_output(shell, capsys, cell)
    same(shell.user_ns["out"], shell.user_ns["images"] * 30)


def test_a_class_moved_down_a_line_is_no_change(shell: Any, capsys: Any) -> None:
    run(shell, "class Sizes:\n    by = 2")
    cell = "%%pure\nout = images * Sizes.by"
    magic_output(shell, capsys, cell)
    run(shell, "pass\nclass Sizes:\n    by = 2")
    assert magic_output(shell, capsys, cell).startswith("pure: cached")


def test_a_function_reads_when_it_is_called_and_not_where_it_is_defined(shell: Any) -> None:
    for parameters in ("x", "x, by=2"):
        body = f"def f({parameters}):\n    return x * scale\nscale = 2\nout = f(images)"
        assert compile_cell(shell, "%%pure", body).reads == ["images"]


def test_the_same_definition_run_again_is_no_change(shell: Any, capsys: Any) -> None:
    for expected in ("traced", "cached"):
        run(shell, "def f(x):\n    return x * 2")
        assert expected in magic_output(shell, capsys, "%%pure\nout = f(images)")


def test_a_state_that_comes_back_has_its_program_still(shell: Any, capsys: Any) -> None:
    magic_output(shell, capsys, LOSS)
    run(shell, "model.eval()")
    assert "retraced" in magic_output(shell, capsys, LOSS)
    for mode in ("train", "eval", "train"):
        run(shell, f"model.{mode}()")
        assert magic_output(shell, capsys, LOSS).startswith("pure: cached")


def test_a_counter_is_never_stale(shell: Any, capsys: Any) -> None:
    run(shell, "count = 0")
    for expected, status in (
        (1, "traced"),
        (2, "retraced: count 0 -> 1"),
        (3, "cached"),
        (4, "cached"),
    ):
        output = magic_output(shell, capsys, "%%pure\ncount += 1\nout = images * count")
        assert shell.user_ns["count"] == expected
        assert torch.equal(shell.user_ns["out"], shell.user_ns["images"] * expected)
        assert output.startswith(f"pure: {status}")


def test_a_dropped_model_is_freed(shell: Any) -> None:
    import gc
    import weakref

    run(shell, LOSS)
    model = weakref.ref(shell.user_ns["model"])
    run(shell, "del model, logits, loss")
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("magic", ["pure", "jit"])
def test_a_size_is_shown_and_kept_as_one(shell: Any, magic: str) -> None:
    run(shell, SETUP)
    for _ in range(2):  # traced, and from the cache
        shown = run(
            shell, f"%%{magic}\nsize = (images * 2).shape\n[model(images).shape, size, (5, 4)]"
        )
        assert [type(s) for s in shown] == [torch.Size, torch.Size, tuple]
        assert shown == [(5, 3), (5, 4), (5, 4)]
        assert type(shell.user_ns["size"]) is torch.Size
