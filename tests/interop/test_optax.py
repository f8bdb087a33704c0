"""`optax_optimizer` against optax itself on the same arrays, and against torch's optimizers where the two agree."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import jaxtorch

from .optax_cases import (
    STEPS,
    TRANSFORMATIONS,
    backward,
    by_optax,
    by_us,
    injected,
    model_of,
    start,
)

# -- optax's numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_as_optax_alone(name: str, way: str) -> None:
    named = name in ("adamw", "two kinds")
    expected = by_optax(TRANSFORMATIONS[name](), named)
    device = "cpu" if way == "cpu" else "jax"
    actual = by_us(TRANSFORMATIONS[name](), named, device, captured=way == "jit")
    for key, value in expected.items():
        assert not torch.equal(value, start()[key]) or name == "only some"
        torch.testing.assert_close(actual[key], value)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
def test_other_dtypes(dtype: torch.dtype, way: str) -> None:
    expected = by_optax(optax.adam(1e-2), False, dtype)
    device = "cpu" if way == "cpu" else "jax"
    actual = by_us(optax.adam(1e-2), False, device, dtype, way == "jit")
    for key, value in expected.items():
        torch.testing.assert_close(actual[key], value)


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "adamw": (
        lambda: optax.adamw(1e-2, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    ),
    "adam": (lambda: optax.adam(1e-2), lambda p: torch.optim.Adam(p, 1e-2)),
    "sgd": (
        lambda: optax.sgd(0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    ),
    "nesterov": (
        lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_as_torchs_own(name: str, device: str) -> None:
    ours, theirs = model_of(device), model_of("cpu")
    make, make_torchs = PAIRS[name]
    optimizers = (
        jaxtorch.optax_optimizer(make(), ours.parameters()),
        make_torchs(theirs.parameters()),
    )
    for i in range(STEPS):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            backward(model, i)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


def test_the_loss_of_a_closure_is_optaxs_value() -> None:
    make = lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(0.5, patience=1))  # noqa: E731
    losses = (1.0, 2.0, 3.0, 4.0)
    expected, state = jnp.zeros(2), make().init(jnp.zeros(2))
    for loss in losses:
        updates, state = make().update(jnp.ones(2), state, expected, value=loss)
        expected = optax.apply_updates(expected, updates)

    def closure(w: nn.Parameter, loss: float) -> torch.Tensor:
        assert torch.is_grad_enabled()
        w.grad = torch.ones_like(w)
        return torch.tensor(loss, device=w.device)

    for device in ("cpu", "jax"):
        w = nn.Parameter(torch.zeros(2, device=device))
        v = nn.Parameter(torch.zeros(2, device=device))
        first, second = (jaxtorch.optax_optimizer(make(), [p]) for p in (w, v))
        for loss in losses:
            assert first.step(functools.partial(closure, w, loss)) == loss
            v.grad = torch.ones_like(v)
            assert second.step(value=loss) is None
        for p in (w, v):
            torch.testing.assert_close(p.detach().cpu(), jaxtorch.to_torch(expected))


# -- gradients that are not there -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_without_a_gradient_stays_and_so_does_its_state(named: bool, way: str) -> None:
    """Adam's moments, of which torch keeps one for each parameter. Only the count is everybody's."""
    device = "cpu" if way == "cpu" else "jax"
    used, unused = (nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
    params = [("used", used), ("unused", unused)] if named else [used, unused]
    optimizer = jaxtorch.optax_optimizer(optax.adamw(0.1, weight_decay=0.5), params)
    both = lambda: (used.sum() * 2 + unused.sum()).backward()  # noqa: E731
    one = lambda: (used * 3).sum().backward()  # noqa: E731
    capture = jaxtorch.jit if way == "jit" else lambda f: f

    def step(losses: Callable[[], None]) -> None:
        optimizer.zero_grad()
        losses()
        optimizer.step()

    first, second = (capture(lambda losses=losses: step(losses)) for losses in (both, one))
    first()
    (state,) = optimizer.state["optax"]
    before = {name: t.clone() for name, t in state.items()}
    where = unused.detach().clone()
    second()
    assert torch.equal(unused, where)
    assert not torch.equal(used, where)
    changed = {name for name, t in state.items() if not torch.equal(t, before[name])}
    place = "used" if named else "0"
    assert changed == {"0.count", f"0.mu.{place}", f"0.nu.{place}"}


def test_frozen_parameters_do_not_decay_and_a_step_without_gradients_is_none() -> None:
    model = model_of("jax")
    model[0].requires_grad_(False)
    frozen = [p.clone() for p in model[0].parameters()]
    optimizer = jaxtorch.optax_optimizer(optax.adamw(0.1, weight_decay=0.5), model.parameters())
    optimizer.step()
    assert optimizer.state["optax"][0]["0.count"] == 0
    backward(model)
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model[0].parameters(), frozen, strict=True))
    assert optimizer.state["optax"][0]["0.count"] == 1
    model[0].requires_grad_(True)  # fine-tuning goes on with all of them
    backward(model)
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(model[0].parameters(), frozen, strict=True))


def test_sparse_gradients_are_refused() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.1), layer.parameters())
    layer(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()


# -- hyperparameters and groups ---------------------------------------------------------------------------------------


def test_hyperparameters_stand_in_the_group_as_they_were_written() -> None:
    w = nn.Parameter(torch.ones(2))
    group = jaxtorch.optax_optimizer(injected(learning_rate=1e-3, b1=0.85), [w]).param_groups[0]
    assert group["lr"] == 0.001
    assert group["b1"] == 0.85
    assert group["weight_decay"] == 0.0001
    inner = optax.chain(optax.clip_by_global_norm(1.0), injected(learning_rate=0.1))
    assert jaxtorch.optax_optimizer(inner, [w]).param_groups[0]["lr"] == 0.1
    scheduled = optax.inject_hyperparams(optax.sgd)(optax.constant_schedule(0.1), momentum=0.9)
    group = jaxtorch.optax_optimizer(scheduled, [w]).param_groups[0]
    assert group["momentum"] == 0.9
    assert "lr" not in group
    twice = optax.chain(injected(), injected(learning_rate=0.1))
    assert "lr" not in jaxtorch.optax_optimizer(twice, [w]).param_groups[0]


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
def test_torchs_schedulers_set_the_rate_and_compile_nothing(way: str) -> None:
    device = "cpu" if way == "cpu" else "jax"
    ours, theirs = model_of(device), model_of("cpu")
    optimizer = jaxtorch.optax_optimizer(injected(weight_decay=0.01), ours.parameters())
    reference = torch.optim.AdamW(theirs.parameters(), 1e-2, weight_decay=0.01)
    make = lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10, cycle_momentum=False)  # noqa: E731
    schedulers = [make(optimizer), make(reference)]

    def step(i: int) -> None:
        backward(ours, i)
        optimizer.step()

    captured = jaxtorch.jit(step, static_argnames="i")
    for i in range(6):
        captured(0) if way == "jit" else step(0)
        backward(theirs, 0)
        reference.step()
        if i == 1:
            count = jaxtorch.compile_count()
        for scheduler in schedulers:
            scheduler.step()
    assert jaxtorch.compile_count() == count
    if way == "jit":
        assert captured.cache_info().misses == 1
        assert isinstance(optimizer.param_groups[0]["lr"], float)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())
    # ... and a step outside of what was captured takes the rate of now
    optimizer.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = 0.5
    step(3)
    backward(theirs, 3)
    reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


def test_a_rate_that_is_built_in_says_so() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = jaxtorch.optax_optimizer(optax.adam(1e-3), [w])
    with pytest.raises(KeyError, match=r"inject_hyperparams\(optax\.adamw\)"):
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for name in ("lr", "learning_rate"):
        with pytest.raises(ValueError, match="inject_hyperparams"):
            jaxtorch.optax_optimizer(optax.adam(1e-3), [{"params": [w], name: 0.1}])
    with pytest.raises(ValueError, match="the name is 'lr'"):
        jaxtorch.optax_optimizer(injected(), [{"params": [w], "learning_rate": 0.1}])
    assert optimizer.param_groups[0].get("lr") is None


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
def test_groups_have_their_own(way: str) -> None:
    device = "cpu" if way == "cpu" else "jax"
    params = [nn.Parameter(torch.ones(2, device=device)) for _ in range(4)]
    optimizer = jaxtorch.optax_optimizer(
        optax.inject_hyperparams(optax.sgd)(1.0),
        [
            {"params": params[:1]},
            {"params": params[1], "lr": 0.5},
            {"params": params[2:3], "transformation": optax.sgd(0.25)},
        ],
    )
    optimizer.add_param_group({"params": params[3:], "lr": 0.125})
    assert [g.get("lr") for g in optimizer.param_groups] == [1.0, 0.5, None, 0.125]
    assert all("transformation" not in g for g in optimizer.param_groups)

    def step() -> None:
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()

    (jaxtorch.jit(step) if way == "jit" else step)()
    assert [p[0].item() for p in params] == [0.0, 0.5, 0.75, 0.875]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": params[3:]})
    with pytest.raises(TypeError, match="Call it"):
        optimizer.add_param_group(
            {"params": [nn.Parameter(torch.ones(1))], "transformation": optax.sgd}
        )
    with pytest.raises(ValueError, match="inject"):
        optimizer.add_param_group(
            {"params": [nn.Parameter(torch.ones(1))], "transformation": optax.sgd(1.0), "lr": 1}
        )
    assert len(optimizer.param_groups) == len(optimizer.state["optax"]) == 4
    step()


def test_a_group_may_be_empty() -> None:
    w = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = jaxtorch.optax_optimizer(
        optax.inject_hyperparams(optax.sgd)(1.0), [{"params": [w]}, {"params": [], "lr": 0.5}]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    w.grad = torch.ones_like(w)
    optimizer.step()
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.25]
    assert w.tolist() == [0, 0]


def test_what_a_step_hands_to_optax() -> None:
    """Arrays, tensors and floats are operands: another value compiles nothing. Everything else is static."""

    def update(updates: Any, state: Any, params: Any = None, *, by: Any, twice: bool) -> Any:
        factor = by["factor"] * (2 if twice else 1)
        return jax.tree.map(lambda u: -u * factor, updates), state

    scaled = optax.GradientTransformationExtraArgs(lambda params: (), update)
    w = nn.Parameter(torch.zeros((), device="jax"))
    optimizer = jaxtorch.optax_optimizer(scaled, [w])
    w.grad = torch.ones_like(w)
    expected = 0.0
    for make in (float, jnp.float32, np.asarray, torch.tensor, lambda v: torch.tensor(v).jax()):
        for twice in (False, True):
            counts = []
            for value in (1.0, 0.5, 0.25):
                optimizer.step(by={"factor": make(value)}, twice=twice)
                counts.append(jaxtorch.compile_count())
                expected -= value * (1 + twice)
            assert counts[1] == counts[2]
            assert w.item() == expected


def test_what_is_no_transformation() -> None:
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"not function. Call it: optax\.adamw\(1e-3\)"):
        jaxtorch.optax_optimizer(optax.adamw, [w])
    with pytest.raises(TypeError, match="not float"):
        jaxtorch.optax_optimizer(0.1, [w])
    with pytest.raises(ValueError, match="empty parameter list"):
        jaxtorch.optax_optimizer(optax.sgd(0.1), [])
    with pytest.raises(ValueError, match="non-leaf"):
        jaxtorch.optax_optimizer(optax.sgd(0.1), [w * 2])


def test_without_optax_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match="pip install optax"):
        jaxtorch.optax_optimizer(None, [nn.Parameter(torch.ones(2))])
