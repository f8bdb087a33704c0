"""`jax_debug_nans` and `jax_debug_infs`: an operator that makes such a value raises at its line and changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch

import jaxtorch

Tensor = torch.Tensor
SIZE = 100_000  # an array that is large enough to be donated


def values() -> Tensor:
    return torch.linspace(-1, 1, SIZE).to("jax")


CALLS: dict[str, Callable[[Tensor], object]] = {
    "an operator": lambda x: x.log(),
    "in place": lambda x: x.log_(),
    "into out": lambda x: torch.log(x, out=torch.zeros(SIZE, device="jax")),
    "a list": lambda x: torch._foreach_log([x, x]),
    "a list in place": lambda x: torch._foreach_log_([x, x.clone()]),
    "a long list in place": lambda x: torch._foreach_log_([x, *(x[:3] + i for i in range(20))]),
    "a view in place": lambda x: x[10:].log_(),
    "pure": lambda x: jaxtorch.pure(lambda a: a.log())(x),
    "pure with a gradient": lambda x: jaxtorch.pure(lambda a: a.log())(x.clone().requires_grad_()),
    "jit": lambda x: jaxtorch.jit(lambda a: a.log())(x),
    "jit that writes": lambda x: jaxtorch.jit(lambda a: a.log_())(x),
    "torch.compile": lambda x: torch.compile(lambda a: a.log(), backend="jax")(x),
    "backward": lambda x: x.clone().requires_grad_().abs().sqrt().sub(1).log().sum().backward(),
    "scan": lambda x: jaxtorch.scan(lambda c, a: (c.log(), a), x, x[None]),
}


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize("name", CALLS)
def test_nan_is_an_error_at_its_line(name: str, execution: str) -> None:
    jaxtorch.config.update(execution=execution)
    try:
        x = values()
        with jax.debug_nans(True):
            with pytest.raises(FloatingPointError, match="nan") as caught:
                CALLS[name](x)
            message = str(caught.value)
            if name != "backward":  # it runs in no line of the user's
                assert re.search(r"test_checked_values\.py, line \d+", message), message
        assert x.cpu().equal(torch.linspace(-1, 1, SIZE)), "what it would have written is as before"
        assert jaxtorch.config.execution == execution
        assert x.log().isnan().any(), "without the check there is no error"
    finally:
        jaxtorch.config.update(execution="immediate")


def test_infinity_is_another_option() -> None:
    x = values() * 0
    with jax.debug_nans(True):
        assert x.log().isinf().all()
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        x.log()


def test_a_step_that_fails_leaves_parameters_and_state() -> None:
    model = torch.nn.Linear(300, 300, device="jax")
    optimizer = torch.optim.AdamW(model.parameters())

    @jaxtorch.jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    good = torch.ones(2, 300, device="jax")
    for _ in range(3):
        step(good)
    before = [t.cpu() for t in _state(model, optimizer)]
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(good / 0 * 0)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        step(torch.full((2, 300), float("nan")).to("jax"))
    assert all(t.cpu().equal(b) for t, b in zip(_state(model, optimizer), before, strict=True))
    with jax.debug_nans(True):
        assert step(good).isfinite()


def _state(model: torch.nn.Module, optimizer: Any) -> list[Tensor]:
    states = [v for state in optimizer.state.values() for v in state.values()]
    return [p.detach() for p in model.parameters()] + states
