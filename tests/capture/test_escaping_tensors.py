"""A tensor that captured code stores where no run can store one, as in an object that it creates: the line is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError

Tensor = torch.Tensor


@dataclass
class State:
    """As functional code keeps it."""

    mean: Tensor
    count: int = 0


def in_a_new_object(kept: SimpleNamespace, x: Tensor) -> Tensor:
    y = x * 2  # computed here
    kept.state = SimpleNamespace(inner=SimpleNamespace(y=y))
    return x + 1


def in_a_dataclass(kept: SimpleNamespace, x: Tensor) -> Tensor:
    mean = kept.state.mean + x  # computed here
    kept.state = replace(kept.state, mean=mean)
    return x + 1


def in_a_closure(kept: SimpleNamespace, x: Tensor) -> Tensor:
    y = x.exp()  # computed here
    kept.again = lambda: y
    return x + 1


KINDS: dict[str, Callable[[SimpleNamespace, Tensor], Tensor]] = {
    f.__name__: f for f in (in_a_new_object, in_a_dataclass, in_a_closure)
}
WAYS: dict[str, Callable[..., Callable[[Tensor], Tensor]]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_line_is_named(kind: str, way: str) -> None:
    step = KINDS[kind]
    lines, first = inspect.getsourcelines(step)
    line = first + next(i for i, text in enumerate(lines) if "# computed here" in text)
    x = torch.ones(2, device="jax")
    kept = SimpleNamespace(state=State(torch.zeros(2, device="jax")))
    captured = WAYS[way](lambda x: step(kept, x))
    if way == "jit":
        captured(x)  # state may be created once, as by an optimizer
    with pytest.raises(CaptureError, match=rf"test_escaping_tensors.py, line {line}\)"):
        captured(x)
