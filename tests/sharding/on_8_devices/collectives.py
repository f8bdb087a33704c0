"""No operator gathers what it need not: the collectives of its programs are those of the same function in plain JAX."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import NamedSharding, PartitionSpec

import jaxtorch
from jaxtorch.programs import stats
from tests.sharding.on_8_devices._meshes import AUTO, P, Tensor, numbers, sharded, spec_of

Array = jax.Array
_COLLECTIVE = re.compile(
    r"= (?:\([^)]*\)|\S+) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\("
)


def collectives(text: str) -> Counter[str]:
    """Of optimized HLO, by kind."""
    return Counter(_COLLECTIVE.findall(text))


def ours(run: Callable[[], object]) -> Counter[str]:
    """Of all programs that a call compiled."""
    first = len(stats.compiled)
    run()
    count: Counter[str] = Counter()
    for record in stats.compiled[first:]:
        handle = record.handle()
        if handle is not None:
            count += collectives(handle.executable.as_text() or "")
    return count


class Case(NamedTuple):
    """One function in torch and in JAX, and its inputs: sizes, or a largest index, and their shardings."""

    torch: Callable[..., Tensor]
    jax: Callable[..., Array]
    inputs: list[tuple[tuple[int, ...], PartitionSpec]]
    indices: tuple[int, ...] = ()  # the inputs that are indices below 16


def attention(q: Array, k: Array, v: Array) -> Array:
    weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v)


def entropy(x: Array, target: Array) -> Array:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), target[:, None], 1))


def added(x: Array, index: Array, values: Array) -> Array:
    return jax.vmap(lambda row, i, v: row.at[i].add(v))(x, index, values)


BATCH, SEQUENCE, HEADS, QUERIES = P("data"), P(None, "data"), P(None, "data"), P(None, None, "data")
X, W, Q = (4, 8, 16), (16, 16), (2, 4, 8, 16)
LINEAR = lambda x, w: jnp.einsum("bsd,od->bso", x, w)  # noqa: E731
SCORES = lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, k)  # noqa: E731

CASES = {
    "linear, batch": Case(F.linear, LINEAR, [(X, BATCH), (W, P())]),
    "linear, sequence": Case(F.linear, LINEAR, [(X, SEQUENCE), (W, P())]),
    "linear, both": Case(F.linear, LINEAR, [(X, P("data", "model")), (W, P())]),
    "linear, columns": Case(F.linear, LINEAR, [(X, BATCH), (W, P("model"))]),
    "matmul, sequence": Case(torch.matmul, jnp.matmul, [(X, SEQUENCE), (W, P())]),
    "matmul, heads": Case(lambda q, k: q @ k.mT, SCORES, [(Q, HEADS), (Q, HEADS)]),
    "matmul, queries": Case(lambda q, k: q @ k.mT, SCORES, [(Q, QUERIES), (Q, P())]),
    "einsum": Case(
        lambda x, w: torch.einsum("bsd,hde->bhse", x, w),
        lambda x, w: jnp.einsum("bsd,hde->bhse", x, w),
        [(X, BATCH), ((4, 16, 8), P("model"))],
    ),
    "attention, batch and heads": Case(
        F.scaled_dot_product_attention, attention, [((4, 2, 8, 16), P("data", "model"))] * 3
    ),
    "attention, heads": Case(F.scaled_dot_product_attention, attention, [(Q, HEADS)] * 3),
    "attention, queries": Case(
        F.scaled_dot_product_attention, attention, [(Q, QUERIES), (Q, P()), (Q, P())]
    ),
    "embedding": Case(F.embedding, lambda i, w: w[i], [((8, 4), BATCH), (W, P())], (0,)),
    "cross_entropy": Case(F.cross_entropy, entropy, [((16, 16), BATCH), ((16,), BATCH)], (1,)),
    "gather": Case(
        lambda x, i: x.gather(1, i),
        lambda x, i: jnp.take_along_axis(x, i, 1),
        [((8, 16), BATCH), ((8, 4), BATCH)],
        (1,),
    ),
    "scatter_add": Case(
        lambda x, i, v: x.scatter_add(1, i, v),
        added,
        [((8, 16), BATCH), ((8, 4), BATCH), ((8, 4), BATCH)],
        (1,),
    ),
    "slice": Case(lambda x: x[:, :4] * 2, lambda x: x[:, :4] * 2, [((8, 16), BATCH)]),
    "select": Case(lambda x: x[:, 1] * 2, lambda x: x[:, 1] * 2, [((8, 16), BATCH)]),
    "sum": Case(lambda x: x.sum(1), lambda x: x.sum(1), [((8, 16), BATCH)]),
    "sort": Case(lambda x: x.sort(1)[0], lambda x: jnp.sort(x, 1), [((8, 16), BATCH)]),
    "cat": Case(
        lambda x, y: torch.cat([x, y], 1),
        lambda x, y: jnp.concatenate([x, y], 1),
        [((8, 16), BATCH)] * 2,
    ),
    "whole": Case(lambda x: x.square().mean(), lambda x: (x * x).mean(), [((8, 16), BATCH)]),
}


def made(case: Case) -> list[Tensor]:
    """The inputs, with gradients for those of floating point."""
    given = []
    for i, (size, spec) in enumerate(case.inputs):
        values = torch.from_numpy(np.random.default_rng(i).integers(0, 16, size))
        values = values if i in case.indices else numbers(*size, seed=i).requires_grad_()
        x = jaxtorch.shard(values.detach(), spec, AUTO)  # keeps int64
        given.append(x.requires_grad_(values.requires_grad))
    return given


def in_jax(function: Callable[..., object], case: Case) -> Counter[str]:
    """Of a JAX function, compiled whole."""
    avals = [
        jax.ShapeDtypeStruct(
            size, np.int32 if i in case.indices else np.float32, sharding=NamedSharding(AUTO, spec)
        )
        for i, (size, spec) in enumerate(case.inputs)
    ]
    return collectives(jax.jit(function).lower(*avals).compile().as_text() or "")


@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("name", CASES)
def test_forward(name: str, way: str) -> None:
    case = CASES[name]
    inputs = [x.detach() for x in made(case)]
    run = jaxtorch.jit(case.torch) if way == "jit" else case.torch
    assert ours(lambda: run(*inputs)) == in_jax(case.jax, case)
    expected = case.torch(*(x.cpu() for x in inputs))
    torch.testing.assert_close(run(*inputs).cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    """The forward and backward programs of `pure`. Eagerly each operator is one program, and none gathers."""
    case = CASES[name]
    inputs = made(case)
    of = [i for i in range(len(inputs)) if i not in case.indices]
    result = case.jax(
        *(
            jnp.zeros(s, np.int32 if i in case.indices else None)
            for i, (s, _) in enumerate(case.inputs)
        )
    )
    size = tuple(result.shape)
    specs = [spec_of(case.torch(*inputs))] if size else [P()]
    cotangent = sharded(numbers(*size, seed=9), specs[0] or P())

    def pulled_back(*arrays: Array) -> object:
        where = NamedSharding(AUTO, specs[0] or P())
        given = jax.lax.with_sharding_constraint(jnp.ones(size, np.float32), where)
        _, pull = jax.vjp(lambda *own: case.jax(*_with(arrays, of, own)), *(arrays[i] for i in of))
        lie = [NamedSharding(AUTO, case.inputs[i][1]) for i in of]
        return jax.tree.map(jax.lax.with_sharding_constraint, pull(given), tuple(lie))

    count = ours(lambda: jaxtorch.pure(case.torch)(*inputs).backward(cotangent))
    allowed = in_jax(pulled_back, case) + in_jax(case.jax, case)
    assert count <= allowed, (count, allowed)
    for i in of:
        assert spec_of(inputs[i].grad) == case.inputs[i][1]
    eager = made(case)
    count = ours(lambda: case.torch(*eager).backward(cotangent))
    assert count["all-gather"] == count["all-to-all"] == count["collective-permute"] == 0
    for ours_, theirs in zip(eager, inputs, strict=True):
        if ours_.grad is not None:
            torch.testing.assert_close(ours_.grad.cpu(), theirs.grad.cpu(), rtol=1e-4, atol=1e-4)


def _with(arrays: tuple[Array, ...], of: list[int], own: tuple[Array, ...]) -> list[Array]:
    full = list(arrays)
    for i, array in zip(of, own, strict=True):
        full[i] = array
    return full


def test_the_memory_of_an_fsdp_step() -> None:
    """Each device holds an eighth of parameters and moments before the step, and of gradients too after it."""
    mesh = jaxtorch.mesh(8, "data")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    jaxtorch.fsdp(model.to("jax"), mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    @jaxtorch.jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        step(jaxtorch.shard(numbers(8, 64), "data", mesh))
    handle = stats.compiled[-1].handle()
    assert handle is not None
    memory = handle.executable.memory_analysis()
    whole = sum(p.nbytes for p in model.parameters())
    batch = 8 * 64 * 4
    assert memory.argument_size_in_bytes <= 1.1 * (3 * whole + batch) / 8
    assert memory.output_size_in_bytes <= 1.1 * 4 * whole / 8


DERIVATIVES: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sin().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(lambda x: f(x).sin(), (x,), (x,))[1],
    "jvp of grad": lambda f, x: torch.func.jvp(
        torch.func.grad(lambda x: f(x).sin().sum()), (x,), (x,)
    )[1],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("linear, seq", "matmul"))])
def test_products_in_transforms_of_torch(name: str, derivative: str) -> None:
    """They keep their dimensions, as with autograd: to reshape an inner sharded one, XLA would gather it."""
    case = CASES[name]
    x, other = (t.detach() for t in made(case))
    run = DERIVATIVES[derivative]

    def step(x: Tensor, other: Tensor) -> Tensor:
        return run(lambda x: case.torch(x, other), x)

    captured = jaxtorch.pure(step)
    assert not ours(lambda: captured(x, other))
    result = captured(x, other)
    torch.testing.assert_close(result.cpu(), step(x.cpu(), other.cpu()), rtol=1e-3, atol=1e-3)
    assert spec_of(result) == case.inputs[0][1]
