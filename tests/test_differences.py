"""Each line of docs/differences.md that depends on values, and `config(check="indices")`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nan

import jaxtorch

Tensor = torch.Tensor
Call = Callable[[str], Any]

PAGE = Path(__file__).parents[1] / "docs" / "differences.md"


def _x(device: str) -> Tensor:
    return torch.arange(1.0, 13.0, device=device).reshape(3, 4)


def _i(device: str, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=device)


def _ones(device: str, *size: int) -> Tensor:
    return torch.ones(size, device=device)


def _embedded(device: str, *numbers: int) -> tuple[Tensor, Tensor]:
    table = _x(device).requires_grad_()
    rows = F.embedding(_i(device, *numbers), table)
    rows.sum().backward()
    assert table.grad is not None
    return rows, table.grad


def _loss(loss: Any, device: str, *targets: int) -> tuple[Tensor, Tensor]:
    x = _x(device).requires_grad_()
    value = loss(x, _i(device, *targets))
    value.backward()
    assert x.grad is not None
    return value, x.grad


def _written(device: str, *numbers: int) -> Tensor:
    x = _x(device)
    x[_i(device, *numbers)] = 0
    return x


# By the first words of the page's line: a call with wrong values, and what the device makes of it.
LINES: dict[str, tuple[Call, Any]] = {
    "an index to read": (lambda d: _x(d)[:, 0][_i(d, 7, 1)], [9, 5]),
    "an index to write": (lambda d: _written(d, 7, 1)[:, 0], [1, 0, 9]),
    "an index of `embedding`": (
        lambda d: torch.cat([t[:, 0] for t in _embedded(d, -1, 9, 1)]),
        [1, 9, 5, 0, 1, 0],
    ),
    "a negative index": (lambda d: _x(d).gather(1, _i(d, -1, 1, 2)[:, None])[:, 0], [1, 6, 11]),
    "a class target of `nll_loss`": (
        lambda d: torch.stack([_loss(F.nll_loss, d, -1, 1, 4)[0]]),
        [nan],
    ),
    "a class target of `multi_margin_loss`": (
        lambda d: _loss(F.multi_margin_loss, d, -1, 9, -4)[1].sum(1),
        [0, 0, 0],
    ),
    "a class of `one_hot": (lambda d: F.one_hot(_i(d, 7), 3)[0], [0, 0, 0]),
    "a probability of": (lambda d: torch.tensor([2, -1, nan], device=d).bernoulli(), [1, 0, 0]),
    "an input of": (lambda d: F.binary_cross_entropy(_ones(d, 1) * 2, _ones(d, 1))[None], [nan]),
    "a rate of": (lambda d: torch.poisson(-_ones(d, 1)), [-1]),
    "`x // 0`": (lambda d: torch.fmod(_i(d, 7), _i(d, 0)), [7]),
    "a NaN given to `torch.linalg.svd`": (
        lambda d: torch.linalg.svdvals(_ones(d, 2, 2) * nan),
        [nan, nan],
    ),
    "a NaN given to `torch.histc`": (lambda d: torch.histc(_ones(d, 1) * nan, 2), [0, 0]),
}
CHECKED = list(LINES)[:10]

VALUES: dict[str, tuple[Call, Any, Any]] = {
    "a float out of": (lambda d: torch.tensor([300.0, -1.0], device=d).byte(), [44, 255], [255, 0]),
    "NaN to an integer": (
        lambda d: torch.tensor([nan], device=d).int(),
        [torch.iinfo(torch.int32).min],
        [0],
    ),
    "subnormals": (lambda d: (torch.tensor([1e-40], device=d) * 1).sign(), [1], [0]),
    "`torch.binomial`": (lambda d: torch.binomial(-_ones(d, 1), _ones(d, 1) / 2), [0], [nan]),
}


def _rows(heading: str) -> list[str]:
    part = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [line[2:] for line in part.splitlines() if line.startswith("| ")][2:]


def _same(found: Tensor, expected: list[float]) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.detach().cpu().double(), wanted, equal_nan=True)


def test_every_line_is_shown() -> None:
    for heading, table in (("Errors that need values", LINES), ("Values", VALUES)):
        rows = _rows(heading)
        assert len(rows) == len(table)
        assert all(row.startswith(key) for row, key in zip(rows, table, strict=True))


@pytest.mark.parametrize("line", LINES)
def test_errors_that_need_values(line: str) -> None:
    call, expected = LINES[line]
    with pytest.raises((RuntimeError, IndexError)):
        call("cpu")
    _same(call("jax"), expected)


@pytest.mark.parametrize("line", VALUES)
def test_values(line: str) -> None:
    call, cpu, jax = VALUES[line]
    if (
        line != "a float out of" and line != "NaN to an integer"
    ):  # undefined in C, so that it may change
        _same(call("cpu"), cpu)
    _same(call("jax"), jax)


def test_what_is_the_same() -> None:
    x = torch.tensor([1.0, nan, 3.0])
    n, by = torch.tensor([8, -8, 8]), torch.tensor([64, 70, -1])
    same: list[Call] = [
        lambda d: torch.tensor([300, -1], device=d).byte(),
        lambda d: n.to(d) >> by.to(d),
        lambda d: n.to(d) << by.to(d),
        lambda d: x.to(d).sort().values,
        lambda d: x.to(d).argmax()[None],
        lambda d: x.to(d).topk(2).values,
        lambda d: torch.cat([x, x]).to(d).unique(),
        lambda d: torch.tensor([2, 1, -1], device=d) ** torch.tensor([-1, -1, -1], device=d),
    ]
    for call in same:
        torch.testing.assert_close(call("jax").cpu(), call("cpu"), equal_nan=True)


# -- an invalid class target trains no class, and a negative index is not the last ------------------------------------


@pytest.mark.parametrize("captured", [False, True])
def test_a_target_that_is_no_class_trains_none(captured: bool) -> None:
    def gradient(x: Tensor, t: Tensor) -> Tensor:
        loss = F.nll_loss(x, t, reduction="sum", ignore_index=2)
        (grad,) = torch.autograd.grad(loss, x)
        return grad

    def run(x: Tensor, t: Tensor) -> Tensor:
        return jaxtorch.jit(gradient)(x, t) if captured else gradient(x, t)

    found = run(_x("jax").requires_grad_(), _i("jax", -1, 1, 2))
    expected = torch.zeros(3, 4)
    expected[1, 1] = -1  # of the others, one is an invalid class, and one is ignored
    assert torch.equal(found.cpu(), expected)


NOT_FROM_THE_END: dict[str, Call] = {
    "gather": lambda d: _x(d).gather(0, _i(d, -1)[:, None]),
    "index_select": lambda d: _x(d).index_select(0, _i(d, -1)),
    "scatter": lambda d: _x(d).scatter(0, _i(d, -1)[:, None], 0.0),
    "scatter_add": lambda d: _x(d).scatter_add(0, _i(d, -1)[:, None], _ones(d, 1, 1)),
    "scatter_reduce": lambda d: _x(d).scatter_reduce(0, _i(d, -1)[:, None], _ones(d, 1, 1), "prod"),
    "index_add": lambda d: _x(d).index_add(0, _i(d, -1), _ones(d, 1, 4)),
    "index_copy": lambda d: _x(d).index_copy(0, _i(d, -1), _ones(d, 1, 4)),
    "index_reduce": lambda d: _x(d).index_reduce(0, _i(d, -1), _ones(d, 1, 4), "amin"),
    "embedding": lambda d: _embedded(d, -1)[1] + _x(d),
    "embedding_bag": lambda d: F.embedding_bag(_i(d, -1)[None], _x(d)),
}


@pytest.mark.parametrize("name", NOT_FROM_THE_END)
def test_a_negative_index_is_not_the_last(name: str) -> None:
    call, x = NOT_FROM_THE_END[name], _x("cpu")
    with pytest.raises((RuntimeError, IndexError)):
        call("cpu")
    found = call("jax").detach().cpu()
    if found.shape == x.shape:  # a write, which does not happen
        assert torch.equal(found, x)
    else:
        assert not torch.isin(found, x[-1]).any()


FROM_THE_END: dict[str, Call] = {
    "index": lambda d: _x(d)[_i(d, -1)],
    "index_put": lambda d: _written(d, -1),
    "index_fill": lambda d: _x(d).index_fill(0, _i(d, -1), 1),
    "take": lambda d: _x(d).take(_i(d, -1)),
    "put": lambda d: _x(d).put(_i(d, -1), _ones(d, 1)),
    "take_along_dim": lambda d: _x(d).take_along_dim(_i(d, -1, -1, -1)[:, None], 1),
}


@pytest.mark.parametrize("name", FROM_THE_END)
def test_a_negative_index_counts_from_the_end_where_torch_says_so(name: str) -> None:
    call = FROM_THE_END[name]
    with jaxtorch.config(check="indices"):
        assert torch.equal(call("jax").cpu(), call("cpu"))


# -- config(check="indices") ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [*CHECKED, *NOT_FROM_THE_END])
def test_values_are_checked_on_demand(line: str) -> None:
    call = LINES[line][0] if line in LINES else NOT_FROM_THE_END[line]
    with pytest.raises(Exception) as cpu:  # noqa: PT011  (the CPU's own exception is what is asked for)
        call("cpu")
    call("jax")  # the program is there, and the check is another's
    with (
        jaxtorch.config(check="indices"),
        pytest.raises(cpu.type, match=r"test_differences\.py, line \d+"),
    ):
        call("jax")
    call("jax")


def test_nothing_is_written_where_an_eager_check_fails() -> None:
    x = _x("jax")
    with jaxtorch.config(check="indices"), pytest.raises(RuntimeError, match="index 7"):
        x.index_add_(0, _i("jax", 0, 7), _ones("jax", 2, 4))
    assert torch.equal(x.cpu(), _x("cpu"))


@pytest.mark.parametrize("how", ["pure", "jit", "scan"])
def test_captured_code_says_so_when_its_values_are_waited_for(how: str) -> None:
    def loss(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(x * 2, t)

    def step(x: Tensor, t: Tensor) -> Tensor:
        value = loss(x, t)
        value.backward()
        return value.detach()

    def scanned(x: Tensor, t: Tensor) -> Tensor:
        return jaxtorch.scan(lambda c, row: (c + F.nll_loss(row[None], t[:1]), c), x.sum() * 0, x)[
            0
        ]

    functions = {"pure": loss, "jit": step, "scan": scanned}
    function = jaxtorch.jit(step) if how == "jit" else jaxtorch.pure(functions[how])
    x = _x("jax").requires_grad_()
    good, bad = _i("jax", 0, 1, 2), _i("jax", 9, 1, 2)
    with jaxtorch.config(check="indices"):
        expected = function(x, good).item()
        with pytest.raises(IndexError, match=r"Target 9 is out of bounds.*test_differences\.py"):
            function(x, bad).item()
        assert function(x, good).item() == expected
        function(x, bad)
        with pytest.raises(IndexError, match="Target 9"):
            torch.jax.synchronize()
    if how == "pure":  # with gradients, and without the check
        assert torch.isnan(function(x, bad)).item()
        with jaxtorch.config(check="indices"):
            function(x, bad).backward()
            with pytest.raises(IndexError, match="Target 9"):
                torch.jax.synchronize()


def test_the_option_for_the_process() -> None:
    jaxtorch.config.update(check="indices")
    try:
        with pytest.raises(IndexError):
            LINES["an index to read"][0]("jax")
    finally:
        jaxtorch.config.update(check="none")
    with pytest.raises(ValueError, match="'none', 'indices'"):
        jaxtorch.config(check="all")
