"""Eager `scan` and `scan_layers` see what their code depends on change, as a loop would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Calls = tuple[Callable[[], Tensor], Callable[[], Any]]
SCALE = 2.0


def helper(x: Tensor) -> Tensor:
    return x * 3


class Config:
    scale = 2.0


def _xs() -> Tensor:
    return torch.arange(3.0, device="jax")


def _total(step: Any) -> Tensor:
    return jaxtorch.scan(step, torch.zeros((), device="jax"), _xs())[0]


def closure() -> Calls:
    factor = 2.0

    def change() -> None:
        nonlocal factor
        factor = 5.0

    return lambda: _total(lambda c, x: (c + x * factor, None)), change


def closure_tensor() -> Calls:
    w = torch.tensor(2.0, device="jax")
    return lambda: _total(lambda c, x: (c + x * w, None)), lambda: w.fill_(5.0)


def replaced_tensor() -> Calls:
    w = torch.tensor(2.0, device="jax")

    def change() -> None:
        nonlocal w
        w = torch.tensor(5.0, device="jax")

    return lambda: _total(lambda c, x: (c + x * w, None)), change


def global_value() -> Calls:
    def change() -> None:
        globals()["SCALE"] = 5.0

    globals()["SCALE"] = 2.0
    return lambda: _total(lambda c, x: (c + x * SCALE, None)), change


def redefined() -> Calls:
    globals()["helper"] = lambda x: x * 3
    return (
        lambda: _total(lambda c, x: (c + helper(x), None)),
        lambda: globals().update(helper=lambda x: x * 7),
    )


def in_a_list() -> Calls:
    ws = [torch.tensor(2.0, device="jax")]
    return (
        lambda: _total(lambda c, x: (c + x * ws[0], None)),
        lambda: ws.__setitem__(0, torch.tensor(5.0, device="jax")),
    )


def attribute() -> Calls:
    config = Config()
    return (
        lambda: _total(lambda c, x: (c + x * config.scale, None)),
        lambda: setattr(config, "scale", 5.0),
    )


def parameter() -> Calls:
    m = nn.Linear(1, 1).to("jax")
    with torch.no_grad():
        m.weight.fill_(2.0)
    return (
        lambda: _total(lambda c, x: (c + x * m.weight.sum(), None)),
        lambda: setattr(m, "weight", nn.Parameter(torch.full((1, 1), 5.0, device="jax"))),
    )


def requires_grad() -> Calls:
    w = torch.tensor(2.0, device="jax")

    def call() -> Tensor:
        y = _total(lambda c, x: (c + x * w, None))
        return torch.autograd.grad(y, w)[0] if y.requires_grad else y.detach()

    return call, lambda: w.requires_grad_()


def _layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 3), nn.Dropout(1.0)).to("jax").eval() for _ in range(2)]


def layers_parameter() -> Calls:
    layers = _layers()
    return (
        lambda: jaxtorch.scan_layers(layers, _xs()),
        lambda: layers[1][0].weight.data.fill_(1.0),  # type: ignore[index, union-attr]
    )


def layers_mode() -> Calls:
    layers = _layers()
    return lambda: jaxtorch.scan_layers(layers, _xs()), lambda: [m.train() for m in layers]


def layers_frozen() -> Calls:
    layers = _layers()

    def call() -> Tensor:
        y = jaxtorch.scan_layers(layers, _xs()).sum()
        return torch.tensor(float(y.requires_grad))

    return call, lambda: [m.requires_grad_(False) for m in layers]


def layers_replaced() -> Calls:
    layers = _layers()
    return (
        lambda: jaxtorch.scan_layers(layers, _xs()),
        lambda: [setattr(m[0], "bias", None) for m in layers],  # type: ignore[index]
    )


CASES: list[Any] = [
    closure,
    closure_tensor,
    replaced_tensor,
    global_value,
    redefined,
    in_a_list,
    attribute,
    parameter,
    requires_grad,
    layers_parameter,
    layers_mode,
    layers_frozen,
    layers_replaced,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_change_is_seen(case: Callable[[], Calls], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCALE", "helper"):
        monkeypatch.setitem(globals(), name, globals()[name])  # to be put back
    call, change = case()
    before = call()
    torch.testing.assert_close(call(), before)
    change()
    after = call()
    assert not torch.equal(after.cpu(), before.cpu())
    fresh = jaxtorch.jit(call)  # traced now
    if case is not requires_grad and case is not layers_frozen:
        torch.testing.assert_close(after, fresh())
