"""Operators whose result's size depends on values: right against the CPU, and few programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.operators.dynamic import rounded
from jaxtorch.programs import tracing
from jaxtorch.programs.untraceable import Untraceable

torch.manual_seed(0)
MATRIX = torch.randint(0, 4, (6, 5))
ROW = torch.tensor([3, 3, 0, 7, 7, 7, 0, 3])
FLOATS = torch.tensor([1.5, float("nan"), -0.0, 0.0, float("nan"), float("inf")])

CASES: dict[str, Callable[[Any], Any]] = {
    "nonzero": lambda t: (t(MATRIX).nonzero(), t(FLOATS).nonzero(), t(MATRIX[0, 0]).nonzero()),
    "nonzero of nothing": lambda t: (t(MATRIX > 9).nonzero(), t(torch.zeros(0, 3)).nonzero()),
    "nonzero as_tuple": lambda t: t(MATRIX).nonzero(as_tuple=True),
    "argwhere": lambda t: torch.argwhere(t(MATRIX > 1)),
    "masked_select": lambda t: t(MATRIX).masked_select(t(MATRIX > 1)),
    "masked_select broadcast": lambda t: t(MATRIX).masked_select(t(MATRIX[0] > 1)),
    "masked_select of nothing": lambda t: t(MATRIX).masked_select(t(MATRIX > 9)),
    "boolean index": lambda t: t(MATRIX)[t(MATRIX[:, 0] > 1)],
    "bincount": lambda t: (torch.bincount(t(ROW)), torch.bincount(t(ROW), minlength=20)),
    "bincount weights": lambda t: torch.bincount(t(ROW), t(torch.arange(8.0))),
    "bincount integer weights": lambda t: torch.bincount(t(ROW), t(torch.arange(8))),
    "repeat_interleave": lambda t: torch.repeat_interleave(t(MATRIX), t(ROW[:6]), 0),
    "repeat_interleave known": lambda t: t(ROW).repeat_interleave(t(ROW), output_size=30),
    "unique": lambda t: torch.unique(t(MATRIX), return_inverse=True, return_counts=True),
    "unique of NaN": lambda t: torch.unique(t(FLOATS), return_counts=True),
    "unique of nothing": lambda t: torch.unique(t(ROW[:0]), return_inverse=True),
    "unique rows": lambda t: torch.unique(t(MATRIX % 2), dim=0, return_inverse=True),
    "unique columns": lambda t: torch.unique(t(MATRIX % 2), dim=1, return_counts=True),
    "unique_consecutive": lambda t: torch.unique_consecutive(
        t(ROW), return_inverse=True, return_counts=True
    ),
    "unique_consecutive dim": lambda t: torch.unique_consecutive(t(MATRIX // 3), dim=0),
    "equal": lambda t: (torch.equal(t(ROW), t(ROW)), torch.equal(t(ROW), t(ROW + 1))),
    "nonzero out": lambda t: torch.nonzero(t(ROW), out=t(torch.empty(0, dtype=torch.int64))),
}


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name: str) -> None:
    actual = CASES[name](lambda x: x.to("jax"))
    expected = CASES[name](lambda x: x.clone())
    for a, e in zip(_leaves(actual), _leaves(expected), strict=True):
        if isinstance(e, torch.Tensor):
            assert a.device.type == "jax"
            a = a.cpu()
        torch.testing.assert_close(a, e, equal_nan=True)
    assert not set(jaxtorch.fallbacks()) & {f"aten::{name.split()[0]}"}


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


@pytest.mark.parametrize("name", ["nonzero", "masked_select", "unique", "bincount"])
def test_sizes_share_programs(name: str) -> None:
    """Ten counts out of 64 elements need one program for each power of two, and one to count."""
    x = torch.arange(64)
    run: dict[str, Callable[[int], torch.Tensor]] = {
        "nonzero": lambda n: (x < n).to("jax").nonzero(),
        "masked_select": lambda n: x.to("jax").masked_select((x < n).to("jax")),
        "unique": lambda n: x.clamp(max=n - 1).to("jax").unique(),
        "bincount": lambda n: x.clamp(max=n - 1).to("jax").bincount(),
    }
    before = jaxtorch.compile_count()
    counts = [3, 5, 9, 12, 17, 20, 25, 33, 41, 64]
    for n in counts:
        result = run[name](n)
        assert result.shape[0] == n
        assert result.is_contiguous()
    assert jaxtorch.compile_count() - before <= 1 + len({rounded(n) for n in counts})


def test_results_are_ordinary_tensors() -> None:
    """A result is a view of a larger buffer: writing, growing and saving must not show it."""
    x = (torch.arange(8) % 3).to("jax")
    rows = x.nonzero()
    rows.add_(1)
    assert rows.flatten().tolist() == [2, 3, 5, 6, 8]
    assert torch.cat([rows, rows]).shape == (10, 1)
    assert rows.view(-1)[-1].item() == 8


def test_gradient() -> None:
    x = torch.arange(6.0, device="jax", requires_grad=True)
    (x.masked_select(x.detach() > 2.5) ** 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0, 6, 8, 10]


def test_bad_arguments() -> None:
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.tensor([-1, 2], device="jax").bincount()
    with pytest.raises(RuntimeError, match="negative"):
        torch.repeat_interleave(torch.tensor([-1, 2], device="jax"))
    with pytest.raises(RuntimeError, match="BoolTensor"):
        torch.ones(3, device="jax").masked_select(torch.ones(3, device="jax"))


def test_inside_a_trace() -> None:
    """Under a trace there is no size to read: the error names the operator."""
    import jax

    from jaxtorch.dispatch.decomposed import over_tensors

    assert tracing.depth == 0
    with pytest.raises(Untraceable, match="nonzero"):
        jax.make_jaxpr(over_tensors(torch.nonzero))(jax.numpy.arange(4))
