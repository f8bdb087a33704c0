"""Constraints in captured code, and any code under a context mesh (`jax.set_mesh`, `with mesh:`)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding
from torch import nn
from torch.distributed.tensor import Shard

import jaxtorch
from jaxtorch.programs import stats
from jaxtorch.storage import in_flight
from tests.sharding.on_8_devices._meshes import AUTO, EXPLICIT, P, Tensor, numbers, sharded, spec_of

constraint = jaxtorch.with_sharding_constraint
MANUAL = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Manual,) * 2)
MIXED = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit, AxisType.Auto))
REVERSED = Mesh(AUTO.devices[::-1], AUTO.axis_names, axis_types=AUTO.axis_types)
SPEC = P("data", "model")

WAYS: dict[str, Callable[[Any], Any]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}
# What the constraint names, and the context mesh: None for no context.
FORMS: dict[str, tuple[Any, Callable[[], AbstractContextManager[object]]]] = {
    "auto": (NamedSharding(AUTO, SPEC), nullcontext),
    "explicit": (NamedSharding(EXPLICIT, SPEC), nullcontext),
    "mixed": (NamedSharding(MIXED, SPEC), nullcontext),
    "manual": (NamedSharding(MANUAL, SPEC), nullcontext),
    "auto, in its context": (NamedSharding(AUTO, SPEC), lambda: jax.set_mesh(AUTO)),
    "explicit, in its context": (NamedSharding(EXPLICIT, SPEC), lambda: jax.set_mesh(EXPLICIT)),
    "spec, auto context": (SPEC, lambda: jax.set_mesh(AUTO)),
    "spec, explicit context": (SPEC, lambda: jax.set_mesh(EXPLICIT)),
    "spec, mixed context": (SPEC, lambda: jax.set_mesh(MIXED)),
    "spec, with block": (SPEC, lambda: AUTO),
    "spec, with block of an explicit mesh": (SPEC, lambda: EXPLICIT),
    "abstract": (NamedSharding(AUTO.abstract_mesh, SPEC), lambda: jax.set_mesh(AUTO)),
    "torch's": (
        [Shard(0), Shard(1)],
        lambda: AUTO,
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*with mesh:DeprecationWarning")
def test_inputs_on_one_device(form: str, way: str) -> None:
    sharding, context = FORMS[form]
    x = numbers(8, 4)
    with context():
        y = WAYS[way](lambda x: constraint(x.sin(), sharding) * 2)(x.to("jax"))
    assert spec_of(y) == SPEC
    torch.testing.assert_close(y.cpu(), x.sin() * 2)


@pytest.mark.parametrize("way", ["pure", "compile"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*with mesh:DeprecationWarning")
def test_gradients(form: str, way: str) -> None:
    sharding, context = FORMS[form]
    expected, w = numbers(8, 4).requires_grad_(), numbers(4, 4, seed=1)
    ((expected @ w).sin() * 2).square().sum().backward()
    for x in (numbers(8, 4).to("jax"), sharded(numbers(8, 4), P("data"))):
        x.requires_grad_()
        with context():
            run = WAYS[way](lambda x, w: constraint((x @ w).sin(), sharding) * 2)
            run(x, w.to("jax")).square().sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_another_context_mesh(way: str) -> None:
    """Is another program: of another shape, or of the same devices in another order."""
    run = WAYS[way](lambda x: constraint(x + 1, P("data")) * 2)
    x = numbers(8, 4)
    for mesh in (
        AUTO,
        REVERSED,
        jaxtorch.mesh(2, "data"),
        jaxtorch.mesh((2, 4), ("a", "data")),
        AUTO,
    ):
        with jax.set_mesh(mesh):
            y = run(x.to("jax"))
        assert jaxtorch.sharding_of(y) == NamedSharding(mesh, P("data"))
        torch.testing.assert_close(y.cpu(), (x + 1) * 2)
    compiled = stats.compile_count()
    with jax.set_mesh(AUTO):
        run(x.to("jax"))
    assert stats.compile_count() == compiled


def hlo(record: stats.ProgramRecord) -> str:
    """What XLA compiled."""
    assert record.handle is not None
    handle = record.handle()
    assert handle is not None
    return str(handle.executable.as_text())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sharding", [NamedSharding(AUTO, P("data")), P("data")])
def test_in_a_scan(sharding: Any, way: str) -> None:
    """The constraint holds in the loop: each device has its rows, and nothing is communicated."""

    def f(x: Tensor, w: Tensor) -> Tensor:
        def body(state: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
            state = constraint((state @ w).tanh(), sharding)
            return state, state

        return jaxtorch.scan(body, x, w)[0]

    x, w = numbers(8, 4), numbers(5, 4, 4, seed=1)
    run = WAYS[way](f)
    with jax.set_mesh(AUTO):
        y = run(x.to("jax"), w.to("jax"))
        text = hlo(stats.compiled[-1])
    assert spec_of(y) == P("data")
    assert "while" in text or way == "compile"  # Dynamo unrolls the loop
    assert "f32[2,4]" in text
    assert "all-gather" not in text
    expected = x
    for each in w:
        expected = (expected @ each).tanh()
    torch.testing.assert_close(y.cpu(), expected)


@pytest.mark.parametrize("way", WAYS)
def test_no_mesh(way: str) -> None:
    """Is an error that says what to write."""
    with pytest.raises(Exception, match="no mesh was given: pass mesh="):
        WAYS[way](lambda x: constraint(x, P("data")))(torch.ones(8, device="jax"))


def test_two_meshes() -> None:
    other = NamedSharding(REVERSED, P("data"))
    run = jaxtorch.pure(
        lambda x: constraint(constraint(x + 1, NamedSharding(AUTO, SPEC)) * 2, other)
    )
    with pytest.raises(RuntimeError, match="are on two meshes"):
        run(torch.ones(8, 4, device="jax"))


# -- code without constraints, under a context mesh --------------------------------------------------------------------


def train(way: str, x: Tensor) -> list[float]:
    """Losses of three steps."""
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 4)
    model = nn.Sequential(*layers).to(x.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    call: Any = WAYS[way](model) if way in ("pure", "compile") else model

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = jaxtorch.jit(step) if way == "jit" else step
    return [run().item() for _ in range(3)]


CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "set_mesh auto": lambda: jax.set_mesh(AUTO),
    "set_mesh explicit": lambda: jax.set_mesh(EXPLICIT),
    "with": lambda: EXPLICIT,
}


@pytest.mark.parametrize("way", ["eager", *WAYS])
@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.filterwarnings("ignore:.*with mesh:DeprecationWarning")
def test_training_on_one_device(name: str, way: str) -> None:
    """The context mesh of the user's JAX code changes nothing: neither results nor their shardings."""
    expected = train("eager", numbers(8, 4))
    with CONTEXTS[name]():
        x = numbers(8, 4).to("jax")
        assert train(way, x) == pytest.approx(expected, rel=1e-3)
        noise = torch.randn(3, device="jax")
        assert x[x > 0].shape == numbers(8, 4)[numbers(8, 4) > 0].shape
        assert str(x) == str(x.clone())
        assert spec_of(x + noise[0]) is None
        assert spec_of(jaxtorch.to_torch(jaxtorch.to_jax(x, copy=True), copy=True)) is None
    assert jax.sharding.get_abstract_mesh().empty


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.filterwarnings("ignore:.*with mesh:DeprecationWarning")
def test_the_context_of_a_jax_function(name: str) -> None:
    """`call_jax` shows it to the function, and restores it."""
    seen = []

    def f(a: jax.Array) -> jax.Array:
        seen.append(jax.sharding.get_abstract_mesh().axis_names)
        return jax.lax.with_sharding_constraint(jax.numpy.sin(a), P("data"))

    x = numbers(8, 4)
    with CONTEXTS[name]():
        before = jax.sharding.get_abstract_mesh()
        for y in (
            jaxtorch.call_jax(f, x.to("jax")),
            jaxtorch.jit(lambda x: jaxtorch.call_jax(f, x))(x.to("jax")),
        ):
            assert spec_of(y) == P("data")
            torch.testing.assert_close(y.cpu(), x.sin())
        assert jax.sharding.get_abstract_mesh() == before
    assert set(seen) == {("data", "model")}


def test_waiting_for_programs_in_flight_ignores_the_context_mesh() -> None:
    """The first wait compiles a program; it comes with any eighth launch."""
    in_flight._last_program.cache_clear()
    with jax.set_mesh(jaxtorch.mesh(2, "data")):
        in_flight._last_program(NamedSharding(AUTO, P()))().block_until_ready()
