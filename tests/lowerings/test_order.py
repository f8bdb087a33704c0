"""Reductions, scans and sorts at their edges, where op_db does not look: NaN, ties, no dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

NAN, INF = float("nan"), float("inf")
ROWS = torch.tensor(
    [
        [2.0, NAN, -INF, 2.0, NAN, 0.0],
        [1.0, 1.0, 3.0, -0.0, 3.0, 0.0],
        [INF, INF, -INF, 5.0, 5.0, 5.0],
        [NAN, NAN, NAN, NAN, NAN, NAN],
    ]
)
TIES = torch.tensor([[3, 1, 3, 2, 1, 1], [0, 0, 5, 5, 5, 0]])
SCALAR = torch.tensor(2.5)
NEGATIVE_NAN = torch.tensor([1.0, -NAN, 2.0, NAN])

INPUTS = {"floats": ROWS, "ties": TIES, "0-dim": SCALAR, "bfloat16": ROWS.bfloat16()}

CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda x: (x.max(-1), x.max(), x.argmax(), x.argmax(-1, keepdim=True)),
    "min": lambda x: (x.min(-1), x.min(), x.argmin(), x.argmin(-1, keepdim=True)),
    "aminmax": lambda x: (x.aminmax(), x.aminmax(dim=-1)),
    "any, all": lambda x: (x.any(-1), x.all(-1), x.any(), x.all(), torch.any(x, dim=())),
    "sort": lambda x: [x.sort(dim=-1, descending=d, stable=True) for d in (False, True)],
    "cummax": lambda x: (x.cummax(-1), x.cummin(-1)),
    "cumsum": lambda x: (x.cumsum(-1), x.cumprod(0)),
    "nansum": lambda x: (x.nansum(-1), x.nansum()),
    # torch's CPU gives NaN among numbers an arbitrary mode.
    "mode": lambda x: (x.nan_to_num(7).mode(-1).values, x.nan_to_num(7).mode(0, True).values),
    "median": lambda x: (x.median(), x.median(-1).values, x.nanmedian(), x.nanmedian(-1).values),
    "kthvalue": lambda x: (x.kthvalue(1, -1).values, x.kthvalue(1, 0, True).values),
    "topk": lambda x: (x.topk(1, -1).values, x.topk(1, -1, largest=False).values),
    "count_nonzero": lambda x: (x.count_nonzero(), x.count_nonzero(-1)),
    "isin": lambda x: (torch.isin(x, x), torch.isin(x, torch.arange(40).to(x))),
    "searchsorted": lambda x: (
        torch.searchsorted(torch.arange(6).to(x), x),
        torch.searchsorted(torch.arange(6).to(x), x, right=True),
        torch.bucketize(x, torch.zeros(0).to(x)),
    ),
    "hash_tensor": lambda x: torch.hash_tensor(x),
}
FLOATS: dict[str, Callable[[torch.Tensor], Any]] = {
    "var": lambda x: (x.var(-1), x.std(), x.var(-1, correction=9), torch.var_mean(x, 0)),
    "logsumexp": lambda x: (x.logsumexp(-1), x.logsumexp((0,))),
    "norm": lambda x: [torch.linalg.vector_norm(x, p) for p in (0, 1, 2, 3.5, INF, -INF)],
    "histc": lambda x: torch.histc(x.nan_to_num(0, 9, -9), 5, -2, 4),
    "quantile": lambda x: (x.float().quantile(0.3), x.float().nanquantile(0.7, -1)),
}


def _compare(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    actual = torch.utils._pytree.tree_leaves(function(x.to("jax")))
    for a, e in zip(actual, torch.utils._pytree.tree_leaves(function(x)), strict=True):
        assert a.device.type == "jax"
        torch.testing.assert_close(a.cpu(), e, equal_nan=True)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", CASES)
def test_any_dtype(name: str, kind: str) -> None:
    _compare(CASES[name], INPUTS[kind])


@pytest.mark.parametrize("kind", ["floats", "0-dim"])
@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str, kind: str) -> None:
    _compare(FLOATS[name], INPUTS[kind])


@pytest.mark.parametrize("name", ["sort", "topk", "max", "cummax", "median"])
def test_the_sign_of_nan_is_nothing(name: str) -> None:
    _compare(CASES[name], NEGATIVE_NAN)


def test_histc_of_integers() -> None:
    """Mixture-of-experts routing counts int32 expert numbers this way; torch's CPU cannot."""
    experts = torch.tensor([0, 3, 3, 1, 7], dtype=torch.int32, device="jax")
    counts = torch.histc(experts, bins=8, min=0, max=7)
    assert counts.tolist() == [1, 1, 0, 2, 0, 0, 0, 1]


def test_a_number_that_changes_compiles_nothing() -> None:
    import jaxtorch

    x = torch.arange(7.0, device="jax")
    x.var(correction=1)
    before = jaxtorch.compile_count()
    for correction in (2, 3, 4):
        x.var(correction=correction)
    assert jaxtorch.compile_count() == before
