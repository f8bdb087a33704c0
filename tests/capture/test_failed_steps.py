"""A training step that fails while it is traced leaves optimizers, gradients and parameters as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5),
    "LBFGS": lambda p: torch.optim.LBFGS(p),
}


class Training:
    """A model, its optimizer, and a step that ends in an error if `fails`."""

    def __init__(self, optimizer: str, device: str = "jax") -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 3).to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.fails = False

    def step(self, x: Tensor) -> Tensor:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(closure)
        else:
            closure()
            self.optimizer.step()
        if self.fails:
            raise ValueError("of the user's")
        return self.model.bias.detach().clone()

    def state(self) -> list[object]:
        """Everything that a step changes."""
        parameters = list(self.model.parameters())
        states = [self.optimizer.state[p] for p in parameters if p in self.optimizer.state]
        values = [(k, v) for state in states for k, v in state.items()]
        values += [("", v) for p in parameters for v in (p, p.grad)]
        return [(k, v.tolist() if isinstance(v, Tensor) else v) for k, v in values]


def _cell(magic: str, step: Step, x: Tensor) -> None:
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jaxtorch")
    shell.user_ns.update(step=step, x=x)
    shell.run_cell(f"{magic}\nresult = step(x)").raise_error()


def _scan(step: Step, x: Tensor) -> object:
    return jaxtorch.scan(lambda c, _: (c + step(x), c), torch.zeros(3).to("jax"), length=2)


# Those of the second table run a step that does not fail.
REFUSING: dict[str, Callable[[Step, Tensor], object]] = {
    "pure": lambda step, x: jaxtorch.pure(step)(x),
    "%%pure": lambda step, x: _cell("%%pure", step, x),
    "pure.lower": lambda step, x: jaxtorch.pure(step).lower(x),
    "scan": _scan,
    "jax_view": lambda step, x: jaxtorch.jax_view(step)(jax.numpy.ones(3)),
    "jax.jit of jax_view": lambda step, x: jax.jit(jaxtorch.jax_view(step))(jax.numpy.ones(3)),
}
ACCEPTING: dict[str, Callable[[Step, Tensor], object]] = {
    "jit": lambda step, x: jaxtorch.jit(step)(x),
    "%%jit": lambda step, x: _cell("%%jit", step, x),
    "jit.lower": lambda step, x: jaxtorch.jit(step).lower(x),
}
CASES = [(door, fails) for door in REFUSING for fails in (False, True)]
CASES += [(door, True) for door in ACCEPTING]


@pytest.mark.parametrize("warm", [False, True], ids=["new", "warm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("door", "fails"), CASES)
def test_nothing_has_changed(door: str, fails: bool, optimizer: str, warm: bool) -> None:
    training, x = Training(optimizer), torch.tensor([1.0, 2.0, 3.0]).to("jax")
    if warm:
        training.step(x)
    before = training.state()
    training.fails = fails
    # What the code must not do may be refused before it reaches its own error.
    with pytest.raises((jaxtorch.CaptureError, ValueError)):
        (REFUSING | ACCEPTING)[door](training.step, x)
    assert training.state() == before


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "LBFGS"])
@pytest.mark.parametrize("door", REFUSING)
def test_training_goes_on_under_jit(door: str, optimizer: str) -> None:
    training, on_cpu = Training(optimizer), Training(optimizer, "cpu")
    with torch.no_grad():
        for ours, theirs in zip(
            training.model.parameters(), on_cpu.model.parameters(), strict=True
        ):
            theirs.copy_(ours)
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(jaxtorch.CaptureError):
        REFUSING[door](training.step, x.to("jax"))
    captured = jaxtorch.jit(training.step)
    for _ in range(3):
        torch.testing.assert_close(captured(x.to("jax")).cpu(), on_cpu.step(x))
