"""`jaxtorch.debug.print` in captured code: a line for each run, with the values of that run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops import print as torch_print

import jaxtorch


def printed(capfd: Any) -> list[str]:
    torch.jax.synchronize()  # type: ignore[attr-defined]  # the device's module
    return str(capfd.readouterr().out).splitlines()


@pytest.mark.parametrize("compiler", [jaxtorch.pure, jaxtorch.jit], ids=["pure", "jit"])
@pytest.mark.parametrize("show", [jaxtorch.debug.print, torch_print], ids=["jaxtorch", "torch"])
def test_a_line_for_each_run(compiler: Any, show: Any, capfd: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        show("sum {s} of {}", tuple(x.shape), s=x.sum())
        return x * 2

    g = compiler(f)
    for value in (1.0, 2.0, 3.0):
        g(torch.full((2, 2), value, device="jax"))
        assert printed(capfd) == [f"sum {4 * value} of (2, 2)"]


def test_forward_and_backward_print_once(capfd: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        jaxtorch.debug.print("{}", y.sum())
        return (y * y).sum()

    x = torch.zeros(3, device="jax", requires_grad=True)
    g = jaxtorch.pure(f)
    for _ in range(2):
        g(x).backward()
        assert printed(capfd) == ["0.0"]


def test_views_steps_of_a_scan_and_eager_code(capfd: Any) -> None:
    def body(carry: torch.Tensor, x: torch.Tensor) -> Any:
        jaxtorch.debug.print("{}", carry)
        return carry + x, carry

    x = torch.arange(3.0, device="jax")
    jaxtorch.pure(lambda x: jaxtorch.scan(body, x[0], x)[0])(x)
    assert printed(capfd) == ["0.0", "0.0", "1.0"]
    jaxtorch.pure(lambda x: jaxtorch.debug.print("{}", x[1:]))(x)
    assert printed(capfd) == ["[1. 2.]"]
    jaxtorch.debug.print("{} {}", x, torch.ones(1, device="cpu"))
    assert printed(capfd) == ["[0. 1. 2.] [1.]"]


def test_torchs_print_shows_tensors_as_torch_does_in_eager_code(capfd: Any) -> None:
    x = torch.ones(2, device="jax", requires_grad=True)
    torch_print("{} {n}", x, n=3)
    assert printed(capfd) == [f"{x} 3"]
