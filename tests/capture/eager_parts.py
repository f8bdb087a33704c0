"""Compiled functions with parts that run eagerly; run as a script with a device, it compares them with eager torch.

The device is used for the first time within a compiled function.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Tensor = torch.Tensor


def printed(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    print(y.shape, y.sum())
    return y * 2


def broken(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return m["linear"](y) * 2


def asked(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    return y * 2 if y.sum() > 0 else y * 3


def as_numpy(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    return y * float(np.abs(y.detach().cpu().numpy()).sum())


def recurrent(m: nn.Module, x: Tensor) -> Tensor:
    return m["lstm"](x[None].sin())[0] * 2


def hooked(m: nn.Module, x: Tensor) -> Tensor:
    return m["hooked"](x.sin()) * 2


def warned(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    warnings.warn("from compiled code", stacklevel=1)
    return y * 2


def listed(m: nn.Module, x: Tensor) -> Tensor:
    y = x.sin()
    return y * sum(y.detach().flatten().tolist())


def unused(m: nn.Module, x: Tensor) -> Tensor:
    """The second linear's result crosses the break, and the loss does not need it."""
    a, b = m["linear"](x), m["other"](x)
    torch._dynamo.graph_break()
    return a.sin() + b.detach()


def moved(m: nn.Module, x: Tensor) -> Tensor:
    """From where it is to the jax device and back."""
    y = x.sin()
    z = (y.cpu().jax() * 3).to(x.device)  # type: ignore[attr-defined]
    return y * z


CASES: list[Callable[[Any, Tensor], Tensor]] = [
    printed,
    broken,
    asked,
    as_numpy,
    recurrent,
    hooked,
    warned,
    listed,
    unused,
    moved,
]


def modules(device: str) -> nn.ModuleDict:
    torch.manual_seed(0)
    found = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 3),
            "other": nn.Linear(3, 3),
            "hooked": nn.Linear(3, 3),
            "lstm": nn.LSTM(3, 4),
        }
    )
    found["hooked"].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    found["hooked"].register_forward_hook(lambda m, args, out: out * 3)
    return found.to(device)


def run(function: Any, device: str, compiled: bool) -> list[Tensor | None]:
    """Value and gradients of three steps of training."""
    m = modules("cpu")
    x = torch.arange(6.0).view(2, 3) / 4
    if device == "jax" and not compiled:
        device = "cpu"
    m, x = m.to(device), x.to(device).requires_grad_()
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="jax")
    optimizer = torch.optim.AdamW(m.parameters(), lr=0.1)
    found: list[Tensor | None] = []
    for _ in range(2):
        optimizer.zero_grad()
        y = function(m, x)
        y.sum().backward()
        found += [
            y.detach().cpu(),
            *(None if p.grad is None else p.grad.cpu().clone() for p in (x, *m.parameters())),
        ]
        optimizer.step()
    return found


def main(device: str) -> None:
    """Print the name of each case that is as on the CPU."""
    order = CASES if device == "jax" else CASES[::-1]  # the first use of the device
    for function in order:
        ours, theirs = run(function, device, True), run(function, "cpu", False)
        assert [g is None for g in ours] == [g is None for g in theirs], function.__name__
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        print("as eagerly:", function.__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
