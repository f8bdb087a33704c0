"""What a compiled function runs eagerly runs as it is: Dynamo leaves this project and JAX alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from .eager_parts import CASES

Tensor = torch.Tensor


@pytest.mark.parametrize("device", ["cpu", pytest.param("jax", marks=pytest.mark.slow)])
def test_in_a_fresh_process(device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.eager_parts", device],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    names = [line.split(": ")[1] for line in done.stdout.splitlines() if "as eagerly: " in line]
    assert sorted(names) == sorted(f.__name__ for f in CASES), done.stderr[-3000:]


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_where_it_must_be(dynamic: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU()).to("jax")
    compiled = torch.compile(model, backend="jax", fullgraph=True, dynamic=dynamic)
    theirs = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU())
    theirs.load_state_dict(model.state_dict())
    for rows in (4, 6):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x.to("jax")).cpu(), theirs(x), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_full_graph_that_cannot_be_is_torchs_error() -> None:
    def f(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(f, backend="jax", fullgraph=True)(torch.ones(2, device="jax"))


@pytest.mark.usefixtures("fresh_dynamo")
def test_only_the_torch_code_is_graphs() -> None:
    """Kernels and JAX are not looked into: nothing of them is compiled, and no break is theirs."""
    from torch._dynamo.utils import counters

    counters.clear()

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        print(float(y.sum()))
        return torch.nn.functional.interpolate(y[None, None], 5)

    torch.compile(f, backend="jax")(torch.ones(3, device="jax"))
    assert all("jaxtorch" not in why and "/jax/" not in why for why in counters["graph_break"])
