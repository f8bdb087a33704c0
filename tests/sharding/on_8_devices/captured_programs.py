"""Random programs of captured code over random shardings: values, gradients and writes are those of unsharded code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import jaxtorch
from tests.sharding.on_8_devices._meshes import AUTO, EXPLICIT, P, Tensor, numbers, sharded, spec_of
from tests.sharding.on_8_devices.eager import BINARY, UNARY


def _first_row_scaled(x: Tensor, y: Tensor) -> Tensor:
    x[0].mul_(y.mean().tanh())
    return x


def _columns_shifted(x: Tensor, y: Tensor) -> Tensor:
    x[:, 1::2].sub_(y.sin().sum(1, keepdim=True)[: x.shape[0]] if y.shape[0] >= x.shape[0] else 1)
    return x


def _copied(x: Tensor, y: Tensor) -> Tensor:
    return x.copy_(y.tanh()) if x.shape == y.shape else x.add_(0.25)


WRITES: list[Callable[[Tensor, Tensor], Tensor]] = [
    _first_row_scaled,
    _columns_shifted,
    _copied,
    lambda x, y: x.t().add_(0.5).t(),
    lambda x, y: x.clamp_(-0.5, 0.5),
]
Step: TypeAlias = "tuple[int, int, Callable[..., Tensor], bool]"
Program: TypeAlias = "Callable[..., tuple[Tensor, ...]]"

SPECS = st.sampled_from(
    [None, P(), P("data"), P("model", "data"), P(None, "model"), P(("data", "model"))]
)
STEPS: st.SearchStrategy[Step] = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from([*UNARY, *BINARY, *WRITES]),
    st.booleans(),
)


def program(steps: list[Step], in_place: bool) -> Program:
    """The steps as a function of three tensors. Writes are to the inputs themselves if `in_place`, else to copies."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(tensors) if in_place else [x.clone() for x in tensors]
        for i, j, function, kept in steps:
            if function in UNARY:
                value = function(values[i])
            elif function in WRITES:
                value = function(values[i] if in_place else values[i].clone(), values[j])
            else:
                value = function(values[i], values[j])
            # A loop's carry keeps its shape.
            values[i] = value if kept or value.shape == values[i].shape else values[i]
        return tuple(x.sin() for x in values)

    return run


def _scanned(run: Program) -> Program:
    """The program, in a loop of two rounds."""

    def loop(*tensors: Tensor) -> tuple[Tensor, ...]:
        carry, _ = jaxtorch.scan(lambda carry, _: (run(*carry), None), tensors, length=2)
        result: tuple[Tensor, ...] = carry
        return result

    return loop


def _twice(run: Program) -> Program:
    return lambda *tensors: run(*run(*tensors))


def _compiled(run: Program) -> Program:
    torch._dynamo.reset()  # it runs a code eagerly that it has compiled eight times
    compiled: Program = torch.compile(run, backend="jax", fullgraph=True)
    return compiled


WAYS: dict[str, Callable[[Program], Any]] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": _compiled,
    "scan": _scanned,
    "scan in jit": lambda f: jaxtorch.jit(_scanned(f)),
}
DRAWN = settings(max_examples=12, deadline=None, derandomize=True, database=None)


def _inputs(specs: list[P | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Three tensors, with the requested shardings and on the CPU."""
    theirs = [numbers(8, 8, seed=i) for i in range(3)]
    meshes = AUTO, EXPLICIT, AUTO
    ours = [
        x.to("jax") if spec is None else sharded(x, spec, mesh)
        for x, spec, mesh in zip(theirs, specs, meshes, strict=True)
    ]
    return ours, theirs


def _equal(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("way", WAYS)
@DRAWN
@given(steps=st.lists(STEPS, min_size=1, max_size=5), specs=st.tuples(SPECS, SPECS, SPECS))
def test_values_and_gradients(way: str, steps: list[Step], specs: tuple[P | None, ...]) -> None:
    scanned = way.startswith("scan")
    steps = [(i, j, f, kept and not scanned) for i, j, f, kept in steps]
    ours, theirs = _inputs(list(specs))
    run = program(steps, in_place=False)
    expected = (_twice(run) if scanned else run)(*(x.requires_grad_() for x in theirs))
    sum(y.square().sum() for y in expected).backward()
    call = WAYS[way](run)
    if way in ("jit", "scan in jit"):  # a step has its backward inside
        leaves = [x.detach() for x in ours]
        step = _step(_scanned(run) if scanned else run)
        results = jaxtorch.jit(step)(*leaves)
        ours_out, gradients = results[:3], results[3:]
    else:
        ours_out = call(*(x.requires_grad_() for x in ours))
        sum(y.square().sum() for y in ours_out).backward()
        gradients = tuple(x.grad for x in ours)
    _equal(ours_out, expected)
    _equal(gradients, tuple(x.grad for x in theirs))


def _step(run: Program) -> Program:
    """The program with its gradients, as a training step computes them."""

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in tensors]
        results = run(*leaves)
        gradients = torch.autograd.grad(sum(y.square().sum() for y in results), leaves)
        return (*(y.detach() for y in results), *gradients)

    return step


@pytest.mark.parametrize("way", ["jit", "compile"])
@DRAWN
@given(steps=st.lists(STEPS, min_size=1, max_size=5), specs=st.tuples(SPECS, SPECS, SPECS))
def test_writes_to_inputs(way: str, steps: list[Step], specs: tuple[P | None, ...]) -> None:
    ours, theirs = _inputs(list(specs))
    run = program(steps, in_place=True)
    call = WAYS[way](run)
    for _ in range(2):
        _equal(call(*ours), run(*theirs))
    _equal(tuple(ours), tuple(theirs))
    for x, spec in zip(ours, specs, strict=True):
        assert spec is None or spec_of(x) == spec
