"""What goes in and out: pytrees, dtypes, shapes, devices, and arguments other than arrays."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxtorch import Size, dtype_j2t, dtype_t2j, torch2jax
from jaxtorch.storage.dtypes import TABLE, DtypeRow

WIDE = {np.dtype(name) for name in ("int64", "uint64", "float64", "complex128")}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_dtype_goes_through_as_it_is(row: DtypeRow) -> None:
    with jax.enable_x64(row.numpy in WIDE):
        x = jnp.asarray(np.array([[0, 1, 3], [2, 1, 0]]).astype(row.numpy))
        seen = []

        def f(t: torch.Tensor) -> torch.Tensor:
            seen.append(t.dtype)
            return t.t()

        for function in (torch2jax(f), jax.jit(torch2jax(f))):
            found = function(x)
            assert found.dtype == x.dtype
            np.testing.assert_array_equal(
                np.asarray(found).astype(np.complex64), np.asarray(x.T).astype(np.complex64)
            )
        assert set(seen) == {dtype_j2t(x.dtype)}
        assert dtype_t2j(dtype_j2t(x.dtype)) == x.dtype


def test_wide_results_are_narrow_where_jax_has_no_wide_dtypes() -> None:
    f = torch2jax(lambda x: (x.double(), x.long(), (x.double() ** 2).sum()))
    found = jax.jit(f)(jnp.array([1.5, 2.0]))
    assert [r.dtype for r in found] == [jnp.float32, jnp.int32, jnp.float32]
    np.testing.assert_array_equal(jax.grad(lambda x: f(x)[2])(jnp.array([1.5, 2.0])), [3.0, 4.0])


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3, 4, 5, 6)])
def test_a_shape_goes_through(shape: tuple[int, ...]) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)
    np.testing.assert_allclose(jax.jit(torch2jax(torch.exp))(x), jnp.exp(x), rtol=1e-6)
    np.testing.assert_allclose(torch2jax(torch.exp)(x), jnp.exp(x), rtol=1e-6)


def test_shapes_and_dtypes_may_change_from_call_to_call() -> None:
    f = torch2jax(lambda x, y: x @ y, jnp.ones((2, 3)), jnp.ones((3, 4)))
    for n in (1, 5):
        assert jax.jit(f)(jnp.ones((n, 3)), jnp.ones((3, n))).shape == (n, n)
    assert f(jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)).dtype == jnp.bfloat16


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Batch:
    images: Any
    labels: Any


def test_pytrees_of_anything() -> None:
    def f(batch: Batch, options: dict[str, Any], *rest: Any, scale: Any) -> dict[str, Any]:
        assert isinstance(batch, Batch)
        assert options["mode"] == "sum"
        assert options["nothing"] is None
        total = getattr(batch.images, options["mode"])() * scale[0]
        return {
            "total": total,
            "pair": Pair(batch.labels, (rest[0] * options["factor"],)),
            "none": None,
        }

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.array([1, 2])
    arguments = Batch(x, y), {"mode": "sum", "nothing": None, "factor": 3}, x[0]
    found = torch2jax(f)(*arguments, scale=[jnp.float32(2.0)])
    assert isinstance(found["pair"], Pair)
    assert found["none"] is None
    assert float(found["total"]) == 30.0
    np.testing.assert_array_equal(found["pair"].first, y)
    np.testing.assert_array_equal(found["pair"].second[0], x[0] * 3)


def test_a_number_and_a_string_are_what_they_are() -> None:
    f = torch2jax(lambda x, dim, how: getattr(x, how)(dim))
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(f(x, 0, "sum"), x.sum(0))
    np.testing.assert_array_equal(f(x, 1, "mean"), x.mean(1))
    flagged = torch2jax(lambda x, n: x + 1 if n is True else x * n)
    np.testing.assert_array_equal(flagged(x, 1), x)
    np.testing.assert_array_equal(flagged(x, True), x + 1)  # `True == 1`, and is another signature


@pytest.mark.parametrize(
    "declaration",
    [
        Size((2, 3)),
        (2, 3),
        [2, 3],
        jax.ShapeDtypeStruct((2, 3), jnp.float32),
        np.zeros((2, 3), np.float32),
        torch.zeros(2, 3),
    ],
    ids=["Size", "tuple", "list", "ShapeDtypeStruct", "array", "tensor"],
)
def test_declared_shapes_are_believed_and_the_function_is_not_run(declaration: Any) -> None:
    calls = []

    def f(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x.clone()

    x = jnp.ones((2, 3))
    wrapped = torch2jax(f, x, output_shapes=declaration)
    traced = jax.jit(wrapped).lower(x)
    assert not calls
    assert traced.out_info.shape == (2, 3)
    calls.clear()


def test_shapes_are_found_on_tensors_without_values() -> None:
    calls = []

    def f(x: torch.Tensor) -> torch.Tensor:
        calls.append(type(x))
        return x[:1] + 1

    wrapped = torch2jax(f, jax.ShapeDtypeStruct((4,), jnp.float32))
    assert [c.__name__ for c in calls] == ["FakeTensor"]
    assert jax.eval_shape(wrapped, jnp.ones(4)).shape == (1,)
    assert len(calls) == 1


def test_a_function_that_asks_for_values_runs_once_on_the_examples() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[: int(x[0])]

    x = jnp.array([2.0, 5.0, 7.0])
    np.testing.assert_array_equal(jax.jit(torch2jax(f, x))(x), [2.0, 5.0])
    np.testing.assert_array_equal(torch2jax(f)(x), [2.0, 5.0])


def test_no_arguments() -> None:
    f = torch2jax(lambda: torch.arange(3.0))
    np.testing.assert_array_equal(f(), [0, 1, 2])
    np.testing.assert_array_equal(jax.jit(f)(), [0, 1, 2])


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_inputs_are_not_copied(transform: Any) -> None:
    """What changes at the address of JAX's array while the function runs, the function sees."""
    x = jnp.ones(1000)

    def f(t: torch.Tensor) -> torch.Tensor:
        ctypes.memset(x.unsafe_buffer_pointer(), 0, x.nbytes)
        return t.sum()

    assert float(transform(torch2jax(f, output_shapes=jnp.zeros(())))(x)) == 0.0


def test_a_result_is_the_call_s_own() -> None:
    parameter = torch.ones(64)
    f = torch2jax(lambda: parameter)
    found = f()
    parameter.add_(1)
    np.testing.assert_array_equal(found, np.ones(64))
    x = jnp.ones(64)
    assert torch2jax(lambda x: x)(x).unsafe_buffer_pointer() != x.unsafe_buffer_pointer()


def test_the_state_of_the_thread_does_not_reach_the_function() -> None:
    seen = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(
            (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.ones(2).device.type)
        )
        return x + torch.ones(2)

    x = jnp.ones(2)
    wrapped = torch2jax(f, output_shapes=x)
    with torch.inference_mode(), torch.device("jax"):
        wrapped(x)
        jax.jit(wrapped)(x).block_until_ready()
        jax.jit(jax.grad(lambda x: wrapped(x).sum()))(x).block_until_ready()
    with torch.no_grad():
        wrapped(x)
    assert set(seen) == {(True, False, "cpu")}


def test_several_devices() -> None:
    """In a process with four of them: `shard_map` with and without JAX's check, sharded arrays, another device."""
    code = """
import jax, jax.numpy as jnp, numpy as np, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jaxtorch import torch2jax

mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
f, g = torch2jax(lambda a, w: torch.sin(a) * w), lambda a, w: jnp.sin(a) * w
a, w = jnp.arange(8.0), jnp.float32(3.0)
for check in (True, False):
    def over(h):
        return jax.jit(jax.shard_map(h, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), check_vma=check))
    def gradients(h):
        return jax.grad(lambda a, w: over(h)(a, w).sum(), argnums=(0, 1))(a, w)
    np.testing.assert_allclose(over(f)(a, w), g(a, w), rtol=1e-6)
    for found, wanted in zip(gradients(f), gradients(g)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
sharded = jax.device_put(a, NamedSharding(mesh, P("i")))
np.testing.assert_allclose(f(sharded, w), g(a, w), rtol=1e-6)
np.testing.assert_allclose(jax.jit(f)(sharded, w), g(a, w), rtol=1e-6)

shapes = []
def scaled(x, w):
    shapes.append(tuple(x.shape))
    return x @ w["w"], x.sum(1)
x = jax.device_put(jnp.arange(32.0).reshape(8, 4), NamedSharding(mesh, P("i")))
params = {"w": jax.device_put(jnp.ones((4, 3)), NamedSharding(mesh, P()))}
for declared in (None, (x[:, :3], x[:, 0])):
    shapes.clear()
    spread = torch2jax(scaled, x, params, output_shapes=declared, output_sharding_spec=P("i"))
    rows, sums = jax.jit(spread)(x, params)
    assert rows.sharding.spec == P("i") and set(shapes) == {(2, 4)}, (rows.sharding, shapes)
    np.testing.assert_allclose(rows, x @ params["w"])
    np.testing.assert_allclose(sums, x.sum(1))
    gradient = jax.jit(jax.grad(lambda p: (spread(x, p)[0] ** 2).sum()))(params)
    np.testing.assert_allclose(gradient["w"], 2 * x.T @ (x @ params["w"]))
try:
    torch2jax(scaled, np.ones((8, 4)), output_sharding_spec=P("i"))
except TypeError as error:
    assert "sharded over one mesh, but they are sharded over 0" in str(error), error
else:
    raise AssertionError
there = f(jax.device_put(a, jax.devices()[2]), w)
assert there.devices() == {jax.devices()[2]}, there.devices()
assert not f(a, w).committed and there.committed
print("done")
"""
    four = {"JAX_NUM_CPU_DEVICES": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **four}, capture_output=True, text=True
    )
    assert done.stdout == "done\n", done.stderr


def test_what_a_jaxpr_shows() -> None:
    text = str(
        jax.make_jaxpr(jax.grad(lambda x: jax.vmap(torch2jax(torch.sin))(x).sum()))(jnp.ones(3))
    )
    assert "torch_call[call=vmap(sin)]" in text
    assert "torch_call[call=vmap(vjp(sin))]" in text


def test_two_threads_learn_at_once_that_a_function_writes() -> None:
    """One is about to write while the other has done so, and got its copies."""
    compiled, inside, done = (threading.Event() for _ in range(3))

    def f(x: torch.Tensor) -> torch.Tensor:
        if not compiled.is_set():
            return x + 1
        if not inside.is_set():
            inside.set()
            assert done.wait(60)
        return x.add_(1)

    x = jnp.zeros(3)
    writes = torch2jax(f, output_shapes=x)
    writes(x)  # a thread that calls what another compiles waits for its first result
    compiled.set()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(writes, x)
        assert inside.wait(60)
        np.testing.assert_array_equal(writes(x), np.ones(3))
        done.set()
        np.testing.assert_array_equal(late.result(60), np.ones(3))
    np.testing.assert_array_equal(x, np.zeros(3))


def test_threads_draw_the_numbers_of_their_own_keys() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        first = torch.rand(())
        time.sleep(0.001)
        return x + torch.stack([first, torch.rand(())])

    draw = jax.jit(torch2jax(f, output_shapes=jnp.zeros(2), rng=True))
    keys = [jax.random.key(i) for i in range(4)]
    alone = [np.asarray(draw(key, jnp.zeros(2))) for key in keys]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            together = pool.map(lambda key: np.asarray(draw(key, jnp.zeros(2))), keys)
            np.testing.assert_array_equal(list(together), alone)
