"""Whose work an instruction of the optimized HLO is: module paths and `record_function` names, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn
from torch.profiler import record_function

import jaxtorch
from jaxtorch.programs import compiling


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function("residual"):
            return x + self.fc(x).tanh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The optimized HLO of every program of captured code that is compiled: eager ones name no module."""
    found: list[str] = []
    build = compiling.fast_call

    def seen(executable: Any) -> Any:
        text = executable.as_text()
        found.extend([text] if "Net" in text else [])
        return build(executable)

    monkeypatch.setattr(compiling, "fast_call", seen)
    # Names are not a part of the persistent cache's key, unless requested.
    before = jax.config.jax_compilation_cache_include_metadata_in_key
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    yield found
    jax.config.update("jax_compilation_cache_include_metadata_in_key", before)


def names(text: str, backward: bool) -> set[str]:
    """The module paths of the instructions, of those that JAX or torch calls transposed or of the others."""
    found = set()
    for name in re.findall(r'op_name="jit\([^)]*\)/([^"]*)/[^/"]*"', text):
        # `jvp(Net)/head`, `transpose(jvp(Net))/head`: JAX wraps the outermost name.
        place = name.find("Net")
        if place >= 0 and name.startswith("transpose") is backward:
            found.add(name[place:].replace(")", ""))
    return found


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().to("jax")


LAYERS = {f"Net/blocks.{i}/residual/fc" for i in (0, 1)}


def test_pure_forward_and_backward(net: nn.Module, texts: list[str]) -> None:
    x = torch.ones(2, 4, device="jax")
    loss = jaxtorch.pure(lambda x: net(x).square().sum())
    loss(x).backward()
    forward, backward = texts[-2:]
    assert {*LAYERS, "Net/blocks.0/residual", "Net/head"} <= names(forward, backward=False)
    assert {*LAYERS, "Net/head"} <= names(backward, backward=True)
    with torch.no_grad():
        loss(x)
    assert {*LAYERS, "Net/head"} <= names(texts[-1], backward=False)


def test_jit_names_the_backward_pass_of_torch_by_its_forward(
    net: nn.Module, texts: list[str]
) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @jaxtorch.jit
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().sum().backward()
        optimizer.step()

    step(torch.ones(2, 4, device="jax"))
    assert names(texts[-1], backward=False) >= LAYERS
    assert {*LAYERS, "Net/head"} <= names(texts[-1], backward=True)


def test_jax_view_and_modules_that_are_no_parts_of_one_another(net: nn.Module) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.others = [net]

        def forward(self, x: Any) -> Any:
            return self.others[0](x)

    view = jaxtorch.jax_view(Holder())
    text = jax.jit(view).lower(jnp.ones((2, 4))).as_text(debug_info=True)
    assert "Holder/Net/blocks.0/residual/fc/dot_general" in text


def test_all_is_as_before_when_a_trace_is_over(net: nn.Module) -> None:
    before = record_function.__enter__, record_function.__exit__

    def fails(x: torch.Tensor) -> torch.Tensor:
        with record_function("left open"):
            net(x)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        jaxtorch.pure(fails)(torch.ones(2, 4, device="jax"))
    assert (record_function.__enter__, record_function.__exit__) == before
    assert not nn.modules.module._global_forward_pre_hooks
    text = jax.jit(lambda x: jnp.sin(x)).lower(1.0).as_text(debug_info=True)
    assert "left open" not in text


def test_a_name_that_was_opened_before_the_trace_is_closed_after_it(net: nn.Module) -> None:
    outer = record_function("outer")
    outer.__enter__()
    pure = jaxtorch.pure(lambda x: (outer.__exit__(None, None, None), net(x))[1])
    x = torch.ones(2, 4, device="jax")
    torch.testing.assert_close(pure(x), net(x))
