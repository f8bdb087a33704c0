"""What captured code hands to XLA: torch's operators whole, taken apart no further than their lowering does."""

from __future__ import annotations

import queue
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.dispatch import operation


def random(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="jax", requires_grad=True)


def instructions(
    function: Callable[..., Any], *args: torch.Tensor, gradients: bool = False
) -> Counter[str]:
    """How often each StableHLO operation occurs in the program of a call."""
    text = jaxtorch.pure(function).lower(*args, gradients=gradients).stablehlo
    return Counter(re.findall(r"stablehlo\.(\w+)", text))


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Gives the operators that captured code has run on the device, as they came."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()  # `lower` would empty a list again
    run = operation.run_traced

    def noting(op: Any, *args: Any) -> Any:
        found.put(op.name.partition(".")[0])
        return run(op, *args)

    monkeypatch.setattr(operation, "run_traced", noting)
    return lambda: [found.get() for _ in range(found.qsize())]


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("ji,kj->ik", (4, 3), (5, 4)),
        ("bqhd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 4, 5)),
        ("...ij,jk->...ik", (2, 7, 3, 4), (4, 5)),
        ("abc,cb->a", (2, 3, 4), (4, 3)),
    ],
)
def test_an_einsum_is_one_dot_general(
    equation: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, a, b)

    a, b = random(*left), random(*right)
    forward = instructions(f, a, b)
    assert forward["dot_general"] == 1
    # The rest gives operands and result their shape.
    assert set(forward) <= {"mesh", "dot_general", "reshape", "transpose", "broadcast_in_dim"}
    assert instructions(f, a, b, gradients=True)["dot_general"] == 3


@pytest.mark.parametrize("causal", [True, False])
def test_attention_stays_whole(causal: bool, operators: Callable[[], list[str]]) -> None:
    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    qkv = [random(2, 4, 3, 5) for _ in range(3)]
    forward = instructions(f, *qkv)
    assert operators() == ["scaled_dot_product_attention"]
    assert forward["dot_general"] == 2
    assert forward["exponential"] == 1


def test_normalization_stays_whole(operators: Callable[[], list[str]]) -> None:
    weight, bias = random(6), random(6)
    forward = instructions(lambda x: F.layer_norm(x, (6,), weight, bias), random(2, 6))
    assert operators() == ["native_layer_norm"]
    assert forward["rsqrt"] == 1


def test_in_a_training_step_the_backward_pass_is_whole_too(
    operators: Callable[[], list[str]],
) -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(6).to("jax")

    @jaxtorch.jit
    def step(x: torch.Tensor) -> None:
        norm(x).sum().backward()

    step(torch.ones(2, 6, device="jax"))
    names = operators()
    heads = [name for name in names if "norm" in name]
    assert heads == ["native_layer_norm", "native_layer_norm_backward"]
    assert not {"mean", "var", "rsqrt", "sub", "pow"} & set(names)


def test_a_transformer_block_has_the_products_it_would_have_in_jax() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).transpose(1, 3).unbind(2)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(x)))

    block = Block().to("jax")
    x = random(2, 5, 8)
    # qkv, scores, mix, out, up, down
    assert instructions(block, x)["dot_general"] == 6
    # two more for each in the backward pass, whose own scores and mix are made once
    assert instructions(block, x, gradients=True)["dot_general"] == 18
