"""Costs of instructions: against formulas, against XLA's totals, and by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import lax

import jaxtorch
from jaxtorch.insight.hlo.costs import NOTHING, Cost, Costs
from jaxtorch.insight.hlo.source import Sources
from tests.libtpu import needs_libtpu

from .programs import array, of_text, optimized

M, N, K = 24, 40, 56


def costs_of(function: Callable[..., Any], *arguments: Any) -> Costs:
    return Costs(optimized(function, *arguments)[0])


def convolution(**more: Any) -> Callable[..., Any]:
    return lambda x, w: lax.conv_general_dilated(
        x, w, more.get("strides", (1, 1)), more.get("padding", "VALID"), **more.get("other", {})
    )


def test_a_product_is_two_operations_for_each_pair() -> None:
    costs = costs_of(lambda a, b: a @ b, array(M, K), array(K, N))
    assert costs.total == Cost(2 * M * N * K, 0, 4 * (M * K + K * N + M * N))


def test_a_batched_product_contracts_one_dimension() -> None:
    costs = costs_of(lambda a, b: jnp.einsum("bmk,bkn->bmn", a, b), array(3, M, K), array(3, K, N))
    assert costs.total.flops == 3 * 2 * M * N * K


def test_elements_are_one_each_and_functions_are_counted_by_themselves() -> None:
    costs = costs_of(lambda a, b: jnp.exp(a * b + a), array(M, N), array(M, N))
    assert costs.total == Cost(2 * M * N, M * N, 3 * 4 * M * N)


def test_a_sum_is_one_less_than_its_elements() -> None:
    assert costs_of(lambda a: a.sum(axis=1), array(M, 8)).total.flops == M * 7


def test_what_is_fused_moves_its_operands_and_its_result_alone() -> None:
    chain = costs_of(lambda a: jnp.sin(jnp.cos(a) * 2 + 1) * 3, array(1000))
    assert chain.total == Cost(3 * 1000, 2 * 1000, 2 * 4 * 1000)


def test_a_loop_counts_as_often_as_it_runs() -> None:
    def body(w: jax.Array) -> Callable[..., Any]:
        return lambda i, x: x @ w

    one = costs_of(lambda x, w: lax.fori_loop(0, 1, body(w), x), array(M, M), array(M, M))
    many = costs_of(lambda x, w: lax.fori_loop(0, 9, body(w), x), array(M, M), array(M, M))
    product = 2 * M**3
    assert product <= one.total.flops < product + 10
    assert 9 * product <= many.total.flops < 9 * (product + 10)
    loop = next(i for i in many.module.instructions.values() if i.opcode == "while")
    assert many.trips.of(loop) == 9
    assert not many.unknown


def test_loops_in_loops_multiply() -> None:
    def twice(x: jax.Array, w: jax.Array) -> jax.Array:
        inner = lambda y: lax.fori_loop(0, 5, lambda j, z: z @ w, y)  # noqa: E731
        return lax.fori_loop(0, 3, lambda i, y: jnp.tanh(inner(y)), x)

    costs = costs_of(twice, array(M, M), array(M, M))
    assert costs.total.transcendentals == 3 * M * M
    assert 15 * 2 * M**3 <= costs.total.flops < 15 * (2 * M**3 + 10) + 3 * 10


def test_a_loop_of_unknown_length_counts_once_and_is_named() -> None:
    def until(x: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: c.sum() < 1e6, lambda c: c * 2, x)

    costs = costs_of(until, array(64))
    assert [i.opcode for i in costs.unknown] == ["while"]
    assert costs.total.flops < 2 * (64 + 64 + 1)


def test_a_slice_reads_what_it_cuts_and_an_update_writes_what_it_changes() -> None:
    cut = costs_of(
        lambda a, i: lax.dynamic_slice(a, (i, 0), (2, N)), array(1000, N), array(dtype="int32")
    )
    # the clamped start costs a few bytes
    assert 2 * 4 * 2 * N <= cut.total.bytes < 2 * 4 * 2 * N + 100
    module = of_text(
        """
        HloModule update
        ENTRY main {
          a = f32[1000,40] parameter(0)
          b = f32[2,40] parameter(1)
          i = s32[] parameter(2)
          j = s32[] parameter(3)
          ROOT u = f32[1000,40] dynamic-update-slice(a, b, i, j)
        }
        """
    )
    assert Costs(module).total.bytes == 2 * (2 * 40 * 4) + 8


@pytest.mark.parametrize(
    ("shape", "kernel", "padding", "positions"),
    [
        ((2, 3, 9, 7), (4, 3, 3, 2), "VALID", 7 * 6 * 3 * 2),
        # 3 wide over 9 with one row of padding at each end: the outermost positions meet 8, the middle one 9
        ((2, 3, 9, 7), (4, 3, 3, 1), ((1, 1), (0, 0)), (8 + 9 + 8) * 7),
    ],
)
def test_a_convolution_counts_the_positions_on_the_input(
    shape: Any, kernel: Any, padding: Any, positions: int
) -> None:
    costs = costs_of(convolution(padding=padding), array(*shape), array(*kernel))
    batch, features = shape[:2]
    assert costs.total.flops == 2 * batch * features * kernel[0] * positions


def test_a_grouped_convolution_reads_its_group_alone() -> None:
    whole = costs_of(convolution(), array(1, 4, 8, 8), array(6, 4, 3, 3)).total.flops
    grouped = convolution(other={"feature_group_count": 2})
    assert costs_of(grouped, array(1, 4, 8, 8), array(6, 2, 3, 3)).total.flops == whole / 2


def test_a_matrix_product_by_a_library() -> None:
    module = of_text(
        """
        HloModule gemm
        ENTRY main {
          a = f32[24,56] parameter(0)
          b = f32[56,40] parameter(1)
          ROOT c = f32[24,40] custom-call(a, b), custom_call_target="__cublas$gemm",
            backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],
            "rhs_contracting_dimensions":["0"]}}}
        }
        """
    )
    costs = Costs(module)
    assert costs.total.flops == 2 * 24 * 40 * 56
    assert not costs.unknown


def network(x: jax.Array, w: jax.Array, v: jax.Array) -> jax.Array:
    """A layer, a normalization, a simple attention, a loss."""
    h = jnp.maximum(x @ w, 0)
    h = (h - h.mean(axis=1, keepdims=True)) * lax.rsqrt(h.var(axis=1, keepdims=True) + 1e-5)
    a = jax.nn.softmax(h @ h.T, axis=-1) @ h
    return jnp.square(a @ v).mean()


def images(x: jax.Array, w: jax.Array) -> jax.Array:
    y = jax.nn.relu(convolution(padding="SAME", strides=(2, 2))(x, w))
    return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").sum()


ARGUMENTS = {
    "network": (network, (array(12, 16), array(16, 16), array(16, 3))),
    "gradient": (jax.grad(network, (1, 2)), (array(12, 16), array(16, 16), array(16, 3))),
    "images": (images, (array(2, 3, 16, 16), array(4, 3, 3, 3))),
    "kernel gradient": (jax.grad(images, 1), (array(2, 3, 16, 16), array(4, 3, 3, 3))),
    "scatter": (lambda x, i: x.at[i].add(1.0), (array(100, 8), array(5, dtype="int32"))),
    "gather": (lambda x, i: x[i] * 2, (array(100, 8), array(5, dtype="int32"))),
    "products": (lambda a, b: a @ b + 1, (array(M, K), array(K, N))),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_without_loops_the_totals_are_xlas(name: str) -> None:
    function, arguments = ARGUMENTS[name]
    module, _, _, compiled = optimized(function, *arguments)
    total, expected = Costs(module).total, compiled.cost_analysis()
    assert total.flops == expected["flops"]
    assert total.transcendentals == expected.get("transcendentals", 0)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_parts_of_a_fusion_add_up_to_it(name: str) -> None:
    function, arguments = ARGUMENTS[name]
    costs = costs_of(function, *arguments)
    fusions = [i for i, _ in costs.executed() if i.opcode == "fusion"]
    total = NOTHING
    for instruction, times in costs.executed():
        for _, cost in costs.spread(instruction):
            total = total.plus(cost.times(times))
    for fusion in fusions:
        added = NOTHING
        for _, cost in costs.spread(fusion):
            added = added.plus(cost)
        assert added == pytest.approx(costs.of(fusion))
    assert total == pytest.approx(costs.total)


@needs_libtpu
def test_a_tpus_program_is_read_and_counted_too() -> None:
    """The TPU compiler has other fusions, asynchronous copies, and tiled layouts."""
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    ).to("jax")
    lowered = jaxtorch.pure(_program).lower(
        model, torch.ones(8, 32, device="jax"), gradients=True, target="v5e:1x1"
    )
    executable = lowered.compile()
    costs = Costs(of_text(executable.hlo))
    expected = executable.cost_analysis()
    assert costs.total.flops == expected["flops"] > 2 * 8 * 32 * 64
    assert costs.total.transcendentals == expected["transcendentals"]
    dots = [i for i in costs.module.instructions.values() if i.op_name.endswith("/tanh")]
    lines = {location.line for i in dots for location in Sources(costs.module).spanned(i)}
    assert lines == {_program.__code__.co_firstlineno + 1}


def _program(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(model(x)).sum()
