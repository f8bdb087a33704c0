"""A step whose first call creates state is compiled once, and its first run is what torch's first step is."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError
from jaxtorch.capture.same_program import _Pairs
from jaxtorch.programs import stats

Tensor = torch.Tensor
Make = Callable[[Any], torch.optim.Optimizer]
optim = torch.optim

STEADY: dict[str, Make] = {
    "AdamW": lambda p: optim.AdamW(p, lr=0.01),
    "Adam, amsgrad": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam, one by one": lambda p: optim.Adam(p, lr=0.01, foreach=False),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adagrad": lambda p: optim.Adagrad(p),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD, Nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, maximize=True),
    "Rprop": lambda p: optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: optim.ASGD(p, lr=0.01),
    "SGD, one by one": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
}
# Their first step is a program of its own.
OTHERS: dict[str, Make] = {
    "SGD, dampened": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
}


def programs(name: str, since: int) -> int:
    """How many programs of this name were compiled since there were so many of any."""
    return sum(record.name == name for record in list(stats.compiled)[since:])


def train(make: Make, **options: Any) -> int:
    """Train a model by a compiled step and its twin eagerly, compare them; returns the number of programs."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    model = nn.Sequential(*layers).to("jax")
    models = [model, copy.deepcopy(model)]
    ours, theirs = (make(m.parameters()) for m in models)

    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step = jaxtorch.jit(lambda x: body(models[0], ours, x), name="steady")
    count = len(stats.compiled)
    warnings.filterwarnings("error", "captured code")  # about what the step itself does not do
    for x in torch.randn(4, 6, 4).to("jax"):
        torch.testing.assert_close(step(x), body(models[1], theirs, x).detach())
        for p, q in zip(*(m.state_dict().values() for m in models), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        states = (list(o.state.values()) for o in (ours, theirs))
        for ones, twins in zip(*states, strict=True):
            assert ones.keys() == twins.keys()
            for key, value in ones.items():
                if isinstance(value, Tensor):
                    expected = twins[key].to("jax")
                    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
    return programs("steady", count)


@pytest.mark.parametrize("name", STEADY)
def test_a_step_that_creates_state_compiles_one_program(name: str) -> None:
    assert train(STEADY[name]) == 1


@pytest.mark.parametrize("name", OTHERS)
def test_a_first_step_unlike_the_others_is_a_program_of_its_own(name: str) -> None:
    assert train(OTHERS[name]) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_first_momentum_is_the_gradient_to_the_last_bit(dtype: torch.dtype) -> None:
    values = [0.0, -0.0, 1.5, -1e-30, float("inf"), float("nan")]
    gradient = torch.tensor(values, dtype=dtype).to("jax")
    w = torch.ones(6, dtype=dtype, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    @jaxtorch.jit
    def step(gradient: Tensor) -> None:
        w.grad = gradient.clone()
        optimizer.step()

    step(gradient)
    momentum = optimizer.state[w]["momentum_buffer"].cpu()
    assert torch.equal(torch.signbit(momentum)[:5], torch.signbit(gradient.cpu())[:5])
    torch.testing.assert_close(momentum, gradient.cpu(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum"])
def test_a_step_that_fails_in_its_first_trace_leaves_no_state(name: str) -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    optimizer = STEADY[name]([w])

    @jaxtorch.jit
    def step() -> None:
        w.sum().backward()
        optimizer.step()
        raise ValueError("after the step")

    with pytest.raises(ValueError, match="after the step"):
        step()
    assert not optimizer.state[w]
    assert w.grad is None
    assert torch.equal(w, torch.ones(2, device="jax"))


def test_state_that_first_equals_a_gradient_trains_on_eagerly() -> None:
    weights = [torch.ones(3, device="jax", requires_grad=True) for _ in range(2)]
    ours, theirs = (STEADY["SGD, momentum"]([w]) for w in weights)

    def body(w: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()

    step = jaxtorch.jit(lambda: body(weights[0], ours))
    for run in (step, step, lambda: body(weights[0], ours), step):
        run()
        body(weights[1], theirs)
        torch.testing.assert_close(*weights)


def test_parameters_that_get_their_first_gradient_later() -> None:
    models = [nn.ParameterList([torch.ones(2), torch.ones(2)]).to("jax") for _ in range(2)]
    ours, theirs = (STEADY["SGD, momentum"](m.parameters()) for m in models)

    def body(model: nn.ParameterList, optimizer: torch.optim.Optimizer, both: bool) -> None:
        optimizer.zero_grad()
        sum(p.square().sum() for p in model[: 2 if both else 1]).backward()
        optimizer.step()

    step = jaxtorch.jit(lambda both: body(models[0], ours, both))
    for both in (False, False, True, True, False):
        step(both)
        body(models[1], theirs, both)
        torch.testing.assert_close(list(models[0]), list(models[1]))
    assert "momentum_buffer" in ours.state[models[0][1]]


@pytest.mark.parametrize("name", ["AdamW", "SGD, momentum"])
@pytest.mark.parametrize("calls", [1, 2])
def test_parameters_that_are_added_get_state_of_their_own(name: str, calls: int) -> None:
    models = [nn.ParameterList([torch.ones(2), torch.ones(2)]).to("jax") for _ in range(2)]
    ours, theirs = (STEADY[name]([m[0]]) for m in models)

    def body(model: nn.ParameterList, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        (model[0] * model[1]).square().sum().backward()
        optimizer.step()

    step = jaxtorch.jit(lambda: body(models[0], ours))
    for i in range(calls + 3):
        if i == calls:
            ours.add_param_group({"params": [models[0][1]]})
            theirs.add_param_group({"params": [models[1][1]]})
        step()
        body(models[1], theirs)
        torch.testing.assert_close(list(models[0]), list(models[1]))
        for ones, twins in zip(ours.state.values(), theirs.state.values(), strict=True):
            torch.testing.assert_close(ones, {k: v.to("jax") for k, v in twins.items()})


class Summing(torch.optim.Optimizer):
    """An optimizer of the user's. It creates its state at the first step, or at each."""

    def __init__(self, params: Any, recreates: bool):
        super().__init__(params, {"lr": 0.1})
        self.recreates = recreates

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if self.recreates or not self.state[p]:
                self.state[p]["sum"] = torch.zeros_like(p)
            self.state[p]["sum"].add_(p.grad)
            p.sub_(self.state[p]["sum"] * 0.1)


@pytest.mark.parametrize("recreates", [False, True])
def test_an_optimizer_of_the_users(recreates: bool) -> None:
    weights = [torch.ones(2, device="jax", requires_grad=True) for _ in range(2)]
    ours, theirs = (Summing([w], recreates) for w in weights)

    def body(w: Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()

    step = jaxtorch.jit(lambda: body(weights[0], ours))
    for _ in range(4):
        step()
        body(weights[1], theirs)
        torch.testing.assert_close(*weights)
        torch.testing.assert_close(ours.state[weights[0]], theirs.state[weights[1]])


def test_an_optimizer_that_every_call_makes() -> None:
    w = torch.ones(2, device="jax", requires_grad=True)

    @jaxtorch.jit
    def step() -> None:
        optimizer = torch.optim.AdamW([w], lr=0.1, weight_decay=0.0)
        w.grad = None
        w.square().sum().backward()
        optimizer.step()

    step()
    with pytest.raises(CaptureError, match="Create the optimizer once"):
        step()
    torch.testing.assert_close(w, torch.full((2,), 0.9).to("jax"))


class CountsInGroups(torch.optim.Optimizer):
    """Keeps its step count in its groups."""

    def __init__(self, w: Tensor) -> None:
        super().__init__([w], {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # without a closure
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                p.sub_(p.grad * (group["lr"] / group["step"]))


def test_numbers_that_an_optimizer_sets_in_its_groups_stay_as_they_were_where_nothing_ran() -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    optimizer = CountsInGroups(w)

    def body(fails: bool) -> None:
        optimizer.zero_grad()
        w.sum().backward()
        optimizer.step()
        if fails:
            raise ValueError("the user's")

    step = jaxtorch.jit(body)
    step.lower(False)
    with pytest.raises(ValueError, match="the user's"):
        step(True)
    assert "step" not in optimizer.param_groups[0]
    step(False)
    assert optimizer.param_groups[0]["step"] == 1


def test_code_that_sets_a_number_of_an_optimizer_itself() -> None:
    w = torch.ones(2, device="jax", requires_grad=True)
    optimizer = CountsInGroups(w)

    @jaxtorch.jit
    def step() -> None:
        w.sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.5

    with pytest.raises(CaptureError, match=r"changes CountsInGroups.param_groups\[0\]\['lr'\]"):
        step()
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_a_gradient_scaler_that_is_made_in_the_first_call() -> None:
    weights = [torch.ones(3, device="jax", requires_grad=True) for _ in range(2)]
    optimizers = [STEADY["SGD, momentum"]([w]) for w in weights]
    # Its state is made by `scale`, in the first call.
    scalers = [torch.amp.GradScaler("jax", init_scale=4.0, growth_interval=2) for _ in range(2)]

    def body(i: int, x: Tensor) -> Tensor:
        optimizers[i].zero_grad()
        loss = (weights[i] * x).square().sum()
        scaled = scalers[i].scale(loss)
        scaled.backward()
        optimizers[i].step()
        return scaled

    step = jaxtorch.jit(lambda x: body(0, x), name="scaled")
    count = len(stats.compiled)
    for x in torch.linspace(0.01, 0.1, 12).reshape(4, 3).to("jax"):
        torch.testing.assert_close(step(x), body(1, x).detach())
        torch.testing.assert_close(*weights)
    assert programs("scaled", count) == 1


# -- the comparison of jaxprs ----------------------------------------------------------------------

x = jnp.arange(6.0).reshape(2, 3)
KINDS: dict[str, list[Callable[[jax.Array, jax.Array], jax.Array]]] = {
    "literal": [lambda a, b: a + b * 2.0, lambda a, b: a + b * 3.0],
    "sign of zero": [lambda a, b: a + b * 0.0, lambda a, b: a + b * -0.0],
    "operands": [lambda a, b: a - b, lambda a, b: b - a],
    "primitive": [lambda a, b: a + jnp.sin(b), lambda a, b: a + jnp.cos(b)],
    "parameter": [lambda a, b: (a + b).sum(0), lambda a, b: (a + b).sum(1)],
    "result": [lambda a, b: (a + b, a * b)[0], lambda a, b: (a + b, a * b)[1]],
    "inner": [
        lambda a, b: jax.jit(lambda c: c + 1.0)(a),
        lambda a, b: jax.jit(lambda c: c + 2.0)(a),
    ],
    "constant": [
        lambda a, b: a + jnp.asarray([1.0, 2, 3]),
        lambda a, b: a + jnp.asarray([1.0, 2, 4]),
    ],
    "branch": [
        lambda a, b: jax.lax.cond(a.sum() > 0, lambda: a, lambda: b),
        lambda a, b: jax.lax.cond(a.sum() > 0, lambda: b, lambda: a),
    ],
    "dtype": [lambda a, b: a.astype("int32"), lambda a, b: a.astype("int16")],
    "gradient rule": [lambda a, b: jax.nn.relu(a) + b, lambda a, b: jax.nn.relu(b) + a],
}


@pytest.mark.parametrize("kind", KINDS)
def test_jaxprs_are_the_same_if_all_their_parts_are(kind: str) -> None:
    first, second = KINDS[kind]

    def jaxpr_of(function: Callable[..., jax.Array]) -> Any:
        # A new function each time, so that JAX traces it again.
        return jax.make_jaxpr(lambda a, b: function(a, b))(x, x)

    assert _Pairs().same(jaxpr_of(first), jaxpr_of(first))
    assert _Pairs().same(jaxpr_of(second), jaxpr_of(second))
    assert not _Pairs().same(jaxpr_of(first), jaxpr_of(second))


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_of_an_earlier_signature_are_released(to_none: bool) -> None:
    model = nn.Linear(256, 256).to("jax")
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    gradients = sum(p.nbytes for p in model.parameters())

    @jaxtorch.jit
    def step(x: Tensor) -> None:
        optimizer.zero_grad(set_to_none=to_none)
        model(x).square().mean().backward()
        optimizer.step()

    def allocated() -> int:
        gc.collect()
        return torch.jax.memory_allocated()

    before = allocated()
    for length in (5, 5, 4, 3, 4, 2):
        step(torch.ones(length, 256, device="jax"))
        assert allocated() - before < 1.5 * gradients
    model.zero_grad()
    assert allocated() - before < 0.5 * gradients
