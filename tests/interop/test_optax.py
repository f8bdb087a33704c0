"""`optax_optimizer` against optax itself on the same arrays, and against torch's optimizers where the two agree."""

from __future__ import annotations

import copy
import functools
import gc
import io
import os
import pickle
import subprocess
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
from jaxtorch.capture.errors import CaptureError

STEPS = 4
SHAPES = {"weight": (4, 3), "bias": (3,), "scale": ()}


def _not_biases(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim > 1, params)


TRANSFORMATIONS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=_not_biases),
    "lion": lambda: optax.lion(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.9),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "scheduled": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 6)),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(1e-2, b1=0.8),
    "injected, scheduled": lambda: optax.inject_hyperparams(optax.sgd)(
        optax.linear_schedule(1.0, 0.1, 3), momentum=0.5
    ),
    "noisy": lambda: optax.noisy_sgd(0.1, key=7),
    "several steps": lambda: optax.MultiSteps(optax.adam(1e-1), 2).gradient_transformation(),
    "schedule free": lambda: optax.contrib.schedule_free_adamw(1e-2),
    "only some": lambda: optax.masked(optax.adam(1e-1), _not_biases),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "average": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.9)),
    "two kinds": lambda: optax.multi_transform(
        {"a": optax.adam(1e-1), "b": optax.sgd(1e-1)},
        lambda params: jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params),
    ),
    "finite": lambda: optax.apply_if_finite(optax.adam(1e-1), 3),
}


def start(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def gradients(step: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step + 1)
    return {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in SHAPES.items()
    }


def by_optax(
    transformation: Any, named: bool, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """The parameters after some steps of optax alone."""

    def tree(tensors: dict[str, torch.Tensor]) -> Any:
        arrays = jaxtorch.to_jax(tensors)
        return arrays if named else list(arrays.values())

    with jax.enable_x64(dtype == torch.float64):
        params = tree(start(dtype))
        state = transformation.init(params)

        @jax.jit
        def update(grads: Any, state: Any, params: Any) -> Any:
            updates, state = transformation.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        for i in range(STEPS):
            params, state = update(tree(gradients(i, dtype)), state, params)
    found = params if named else dict(zip(SHAPES, params, strict=True))
    return jaxtorch.to_torch(found, "cpu")


def by_us(
    transformation: Any,
    named: bool,
    device: str,
    dtype: torch.dtype = torch.float32,
    captured: bool = False,
) -> dict[str, torch.Tensor]:
    params = {name: nn.Parameter(t.to(device)) for name, t in start(dtype).items()}
    optimizer = jaxtorch.optax_optimizer(
        transformation, params.items() if named else params.values()
    )

    def step(*grads: torch.Tensor) -> None:
        for p, g in zip(params.values(), grads, strict=True):
            p.grad = g
        optimizer.step()

    run = jaxtorch.jit(step) if captured else step
    for i in range(STEPS):
        run(*(g.to(device) for g in gradients(i, dtype).values()))
    return {name: p.detach().cpu() for name, p in params.items()}


def model_of(device: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)


def backward(model: nn.Module, step: int = 0) -> torch.Tensor:
    """A loss and its gradients."""
    p = next(model.parameters())
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step)).to(p.device, p.dtype)
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss


def injected(**settings: Any) -> Any:
    return optax.inject_hyperparams(optax.adamw)(**{"learning_rate": 1e-2, **settings})


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
        assert captured.cache_info().misses == 2  # the first makes gradients, that last
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
    with pytest.raises(ValueError, match="torch's name is 'lr'"):
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


# -- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["adafactor", "injected", "noisy", "several steps", "two kinds"])
def test_a_saved_state_goes_on_as_if_never_interrupted(name: str, device: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return jaxtorch.optax_optimizer(TRANSFORMATIONS[name](), model.parameters())

    model = model_of(device)
    optimizer = make(model)
    for i in range(3):
        backward(model, i)
        optimizer.step()
    if "lr" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["lr"] = 0.03
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    for i in range(3, 6):
        backward(model, i)
        optimizer.step()
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other = model_of(device)
    resumed = make(other)
    backward(other)
    resumed.step()  # of its own, to be forgotten
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0].get("lr") == optimizer.param_groups[0].get("lr")
    for i in range(3, 6):
        backward(other, i)
        resumed.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_that_another_library_moves() -> None:
    """As Lightning does, which puts what it finds in `optimizer.state` where it thinks that the parameters are."""
    models = model_of("cpu"), model_of("cpu")
    moved, other = (jaxtorch.optax_optimizer(injected(), m.parameters()) for m in models)
    for i in range(4):
        if i == 1:
            for key, value in moved.state.items():
                moved.state[key] = torch.utils._pytree.tree_map(lambda t: t.to("cpu"), value)
        if i == 2:
            moved.load_state_dict(copy.deepcopy(moved.state_dict()))
        for model, optimizer in zip(models, (moved, other), strict=True):
            backward(model, i)
            optimizer.step()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(p, q)


def test_accelerate_takes_it() -> None:
    code = """
import accelerate, jaxtorch, optax, tempfile, torch
accelerator = accelerate.Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = jaxtorch.optax_optimizer(optax.inject_hyperparams(optax.adam)(0.1), model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
assert next(model.parameters()).is_jax
def step():
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2, device="jax")).square().sum()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
step()
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    first = [step() for _ in range(3)]
    accelerator.load_state(folder)
    assert [step() for _ in range(3)] == first
"""
    environment = {**os.environ, "ACCELERATE_TORCH_DEVICE": "jax"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_loaded_state_keeps_captured_programs() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())

    @jaxtorch.jit
    def step() -> torch.Tensor:
        loss = backward(model)
        optimizer.step()
        return loss

    step()
    step()
    misses = step.cache_info().misses
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = [step().item() for _ in range(3)]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert [step().item() for _ in range(3)] == expected
    assert step.cache_info().misses == misses


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())
    backward(model)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    small = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    for state, words in (
        (jaxtorch.optax_optimizer(optax.sgd(0.1, 0.9), model.parameters()), "another optax"),
        (jaxtorch.optax_optimizer(injected(), small), "other parameters"),
        (torch.optim.AdamW(model.parameters()), "not of an optax optimizer"),
        (jaxtorch.optax_optimizer(injected(), [{"params": [p]} for p in small]), "number of param"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(state.state_dict())
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_a_deep_copy_is_an_optimizer_of_its_own_and_pickle_says_what_to_save() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())
    backward(model)
    twin, copied = copy.deepcopy((model, optimizer))
    assert copied.param_groups[0]["params"][0] is next(twin.parameters())
    backward(twin)
    copied.step()
    assert optimizer.state["optax"][0]["count"] == 0
    assert copied.state["optax"][0]["count"] == 1
    optimizer.step()
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    for save in (pickle.dumps, lambda o: torch.save(o, io.BytesIO())):
        with pytest.raises(TypeError, match=r"state_dict\(\)"):
            save(optimizer)


# -- torch's ways ----------------------------------------------------------------------------------------------------


def test_hooks_run_and_repr_shows_the_group() -> None:
    w = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = jaxtorch.optax_optimizer(injected(), [w])
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert seen == ["before", "after"]
    assert "lr: 0.01" in repr(optimizer)
    optimizer.zero_grad()
    assert w.grad is None


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_grad_scaler_skips_a_step_with_infinite_gradients(device: str) -> None:
    w = nn.Parameter(torch.ones(3, device=device))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.1), [w])
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(w.detach().cpu(), torch.full((3,), 0.9))


def test_a_parameter_is_updated_where_it_lies() -> None:
    host = nn.Parameter(torch.ones(64))
    device = nn.Parameter(torch.ones(64, device="jax"))
    views = [p.detach()[1:] for p in (host, device)]
    address = host.data_ptr()
    optimizers = [jaxtorch.optax_optimizer(optax.sgd(1.0), [p]) for p in (host, device)]

    def step() -> None:
        for p, optimizer in zip((host, device), optimizers, strict=True):
            p.grad = torch.full_like(p, 0.25)
            optimizer.step()

    step()
    assert host.data_ptr() == address
    memory = device.untyped_storage().buffer.array.unsafe_buffer_pointer()
    step()
    assert device.untyped_storage().buffer.array.unsafe_buffer_pointer() == memory  # donated
    held = jaxtorch.to_jax(device.detach())
    step()
    assert held.tolist() == [0.5] * 64
    assert all(v.tolist() == [0.25] * 63 for v in views)


@pytest.mark.parametrize("captured", [False, True])
def test_parameters_and_gradients_of_every_geometry(captured: bool) -> None:
    flat = torch.arange(12.0, device="jax")
    whole = torch.ones(3, device="jax")
    params = [
        nn.Parameter(flat[:6].view(2, 3)),
        nn.Parameter(flat[6:]),
        nn.Parameter(
            torch.ones(2, 3, 4, 5, device="jax").contiguous(memory_format=torch.channels_last)
        ),
        nn.Parameter(torch.ones(3, 4, device="jax").t()),
        nn.Parameter(whole),
        nn.Parameter(whole),  # the same memory: what comes last is what it holds
    ]
    optimizer = jaxtorch.optax_optimizer(optax.sgd(1.0), params)
    expected = [p.detach().cpu().clone() - 2 for p in params]

    def step() -> None:
        for p in params:
            p.grad = torch.ones((), device="jax").expand(p.shape)
        optimizer.step()

    run = jaxtorch.jit(step) if captured else step
    run()
    run()
    for p, e in zip(params[:4], expected, strict=False):
        assert torch.equal(p.detach().cpu(), e)
    assert flat.tolist() == [x - 2.0 for x in range(12)]
    assert whole.tolist() == params[5].tolist() == [-1.0] * 3


def test_a_gradient_that_is_the_parameter_itself() -> None:
    w = nn.Parameter(torch.full((3,), 4.0, device="jax"))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
    w.grad = w.detach()
    optimizer.step()
    assert w.tolist() == [2.0] * 3


def test_autograd_knows_that_the_parameters_were_written() -> None:
    for device in ("cpu", "jax"):
        w = nn.Parameter(torch.ones(3, device=device))
        optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_nothing_grows() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(optax.adamw(1e-3), model.parameters())

    def step() -> None:
        backward(model)
        optimizer.step()

    for _ in range(20):
        step()
    gc.collect()
    before, count = torch.jax.memory_allocated(), jaxtorch.compile_count()
    for _ in range(200):
        step()
    gc.collect()
    assert torch.jax.memory_allocated() <= before + 1000
    assert jaxtorch.compile_count() == count


# -- errors leave everything as it was --------------------------------------------------------------------------------


def step_of(w: nn.Parameter, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        (w * 2).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
def test_an_error_in_the_update_leaves_everything_as_it_was(way: str) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        raise ZeroDivisionError("in the middle")

    broken = optax.chain(optax.adam(0.1), optax.GradientTransformation(lambda p: (), update))
    growing = optax.GradientTransformation(
        lambda p: jnp.zeros(1), lambda u, s, p=None: (u, jnp.zeros(s.shape[0] + 1))
    )
    for transformation, error, words in (
        (broken, ZeroDivisionError, "in the middle"),
        (growing, ValueError, "another form than its init"),
    ):
        w = nn.Parameter(torch.ones(3, device="cpu" if way == "cpu" else "jax"))
        optimizer = jaxtorch.optax_optimizer(transformation, [w])
        before = copy.deepcopy(optimizer.state_dict())

        step = step_of(w, optimizer)
        with pytest.raises(error, match=words):
            (jaxtorch.jit(step) if way == "jit" else step)()
        assert w.tolist() == [1.0] * 3
        assert way != "jit" or w.grad is None
        torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_captured_code_needs_the_device_and_an_optimizer_that_is_there() -> None:
    host = nn.Parameter(torch.ones(2))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [host])
    x = torch.ones(2, device="jax")

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        host.grad = torch.ones(2)
        optimizer.step()
        return x * 2

    with pytest.raises(RuntimeError, match=r"model\.to\('jax'\)"):
        step(x)
    assert host.tolist() == [1, 1]

    @jaxtorch.jit
    def make(x: torch.Tensor) -> torch.Tensor:
        w = nn.Parameter(x * 2)
        jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
        return w

    with pytest.raises(CaptureError, match="make the optimizer outside"):
        make(x)


def test_a_whole_step_is_one_program_and_trains_as_eagerly() -> None:
    models = [model_of("jax") for _ in range(2)]
    optimizers = [
        jaxtorch.optax_optimizer(
            optax.chain(optax.clip_by_global_norm(0.5), injected()), model.parameters()
        )
        for model in models
    ]

    def body(i: int, x: torch.Tensor) -> torch.Tensor:
        optimizers[i].zero_grad()
        loss = models[i](x).square().mean()
        loss.backward()
        optimizers[i].step()
        return loss

    step = jaxtorch.jit(lambda x: body(0, x))
    for x in torch.randn(5, 6, 4, device="jax"):
        torch.testing.assert_close(step(x.clone()), body(1, x).detach())
    assert step.cache_info().misses == 2  # the first makes gradients, that last
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_an_interrupted_step_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where parameters of the CPU are copied back, Ctrl-C waits."""
    from jaxtorch.device import interrupts

    open_: list[bool] = []
    copy_ = torch.Tensor.copy_

    def watched(self: torch.Tensor, *args: Any) -> torch.Tensor:
        open_.append(interrupts._is_good(sys._getframe()))
        return copy_(self, *args)

    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), params)
    for p in params:
        p.grad = torch.ones_like(p)
    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    optimizer.step()
    assert open_ == [False, False, False]
    assert interrupts._is_good(sys._getframe())


def test_parameters_over_several_devices() -> None:
    code = """
import jax, jax.numpy as jnp, jaxtorch, optax, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("rows"))
w = torch.nn.Parameter(jaxtorch.to_torch(jax.device_put(jnp.ones((8, 2)), rows)))
adam = optax.inject_hyperparams(optax.adam)(0.5)
optimizer = jaxtorch.optax_optimizer(adam, [w])
for _ in range(3):
    w.grad = jaxtorch.to_torch(jax.device_put(jnp.ones((8, 2)), rows))
    optimizer.step()
array = jaxtorch.to_jax(w.detach())
assert array.sharding == rows, array.sharding
expected = jnp.ones((8, 2))
state = adam.init(expected)
for _ in range(3):
    updates, state = adam.update(jnp.ones((8, 2)), state, expected)
    expected = optax.apply_updates(expected, updates)
assert jnp.allclose(array, expected)
"""
    flags = "--xla_force_host_platform_device_count=4"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "XLA_FLAGS": flags})


def test_numbers_of_a_torch_scheduler_are_python_numbers() -> None:
    """What is saved of a group can be read without jax."""
    optimizer = jaxtorch.optax_optimizer(injected(), [nn.Parameter(torch.ones(2))])
    kinds = {type(v) for k, v in optimizer.state_dict()["param_groups"][0].items() if k != "params"}
    assert kinds == {float}
    assert not any(isinstance(v, np.generic) for v in optimizer.param_groups[0].values())
