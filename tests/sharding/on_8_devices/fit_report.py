"""The memory of a sharded program by its schedule, against what XLA allocates on each of 8 devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxtorch.capture.lowering import Executable
from jaxtorch.capture.tpu_worker import describe, protos
from jaxtorch.insight.fit.liveness import Liveness
from jaxtorch.insight.hlo.module import read_module

P = PartitionSpec


@pytest.mark.parametrize("remat", [False, True])
def test_the_peak_of_a_sharded_step_with_a_loop(remat: bool) -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(jnp.tanh(h @ w) @ w.T), None

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.square(
            jax.lax.scan(jax.checkpoint(layer) if remat else layer, x, weights)[0]
        ).mean()

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        return weights - 0.1 * jax.grad(loss)(weights, x)

    weights = jax.ShapeDtypeStruct(
        (8, 256, 256), jnp.float32, sharding=NamedSharding(mesh, P(None, "data"))
    )
    x = jax.ShapeDtypeStruct((4096, 256), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    compiled = jax.jit(step, donate_argnums=0).lower(weights, x).compile()
    program = Executable(describe(compiled, jax.devices()[0]), protos(compiled))
    module = read_module(program.hlo_proto)
    peak = Liveness(module, lambda shape: shape.bytes, of_outputs=True).peak.bytes
    memory = program.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    held = memory.argument_size_in_bytes
    allocated = held + outputs + memory.temp_size_in_bytes
    assert held + peak == pytest.approx(allocated, rel=0.1)
