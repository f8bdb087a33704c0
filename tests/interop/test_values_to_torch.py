"""Arrays as tensors: what is shared, what is copied, and that neither side sees the other's writes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import torch

import jaxtorch

from .shared_memory import DEVICES, address, default_device, pointer

# -- JAX to torch ------------------------------------------------------------------------------------------------


def test_where_the_tensor_is() -> None:
    array = jnp.arange(3.0)
    assert jaxtorch.to_torch(array).device.type == "cpu"
    assert jaxtorch.to_torch(array, "jax").is_jax
    with torch.device("jax"):
        assert jaxtorch.to_torch(array).is_jax
        assert jaxtorch.to_torch(array, "cpu").device.type == "cpu"
    with default_device("jax"):
        assert jaxtorch.to_torch(array).is_jax
    with default_device("meta"), torch.device("cpu"):
        assert jaxtorch.to_torch(array).device.type == "cpu"
    assert jaxtorch.to_torch(array, "meta").device.type == "meta"
    with pytest.raises(RuntimeError, match="jax:0"):
        jaxtorch.to_torch(array, "jax:1")


def test_on_the_cpu_the_memory_is_shared_and_a_write_can_be_told() -> None:
    array = jnp.arange(64.0)
    tensor = jaxtorch.to_torch(array)
    assert address(tensor) == pointer(array)
    view = torch.nn.Parameter(tensor).detach()[3:]
    assert tensor._version == 0
    view.zero_()
    assert tensor._version == 1
    copied = jaxtorch.to_torch(array, copy=True)
    assert address(copied) != pointer(array)
    copied.fill_(-1)
    assert array[0] == 0
    with pytest.raises(ValueError, match="not on meta"):
        jaxtorch.to_torch(array, "meta", copy=False)


def test_on_the_device_a_write_does_not_reach_the_array() -> None:
    array = jnp.zeros(64)
    weight = torch.nn.Parameter(jaxtorch.to_torch(array, "jax"))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for _ in range(3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert array.sum() == 0
    assert not array.is_deleted()
    assert jaxtorch.to_jax(weight.detach()).sum() == -192
    assert pointer(jaxtorch.to_jax(jaxtorch.to_torch(array, "jax", copy=True))) != pointer(array)


def test_jax_copies_where_shared_memory_is_donated() -> None:
    array = jnp.zeros(1000) + 1
    tensor = jaxtorch.to_torch(array)
    result = jax.jit(lambda x: x + 5, donate_argnums=0)(array)
    assert result.sum() == 6000
    assert tensor.sum() == 1000
    array = jnp.zeros(1000) + 1
    tensor = jaxtorch.to_torch(array)
    array.delete()
    gc.collect()
    assert tensor.sum() == 1000


def test_what_cannot_be_a_tensor() -> None:
    gone = jnp.zeros(3)
    gone.delete()
    for device in DEVICES:
        with pytest.raises(RuntimeError, match=r"float32\[3\] was deleted") as caught:
            jaxtorch.to_torch([gone], device)
        assert caught.value.__notes__ == ["in to_torch, at [0]"]
        with pytest.raises(TypeError, match="key_data"):
            jaxtorch.to_torch(jax.random.key(0), device)
        with pytest.raises(TypeError, match="int4"):
            jaxtorch.to_torch(jnp.zeros(3, jnp.int4), device)
    with pytest.raises(TypeError, match="torch2jax"):
        jax.jit(lambda x: jaxtorch.to_torch(x, "cpu"))(jnp.zeros(3))


def test_an_array_over_several_devices() -> None:
    code = """
import jax, jax.numpy as jnp, jaxtorch, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("rows"))
array = jax.device_put(jnp.arange(8.0), rows)
assert jaxtorch.to_torch(array).is_jax
assert jaxtorch.to_jax(jaxtorch.to_torch(array)) is array
assert jaxtorch.to_torch(array, "cpu").tolist() == list(range(8))
tensor = jaxtorch.to_torch(array)
assert (tensor + tensor).tolist() == list(range(0, 16, 2))
assert (tensor * 2.5 + 1).tolist() == [2.5 * n + 1 for n in range(8)]
assert (tensor[3] + 1).tolist() == 4.0
assert tensor.clone().mul_(0.5).tolist() == [0.5 * n for n in range(8)]
try:
    jaxtorch.to_torch(array, "cpu", copy=False)
except ValueError as error:
    assert "cpu:3" in str(error), error
else:
    raise AssertionError
second = jax.device_put(jnp.ones(3), jax.devices()[1])
assert (second + jaxtorch.to_jax(torch.ones(3))).devices() == {jax.devices()[1]}  # not committed
"""
    four = {"JAX_NUM_CPU_DEVICES": "4"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **four})
