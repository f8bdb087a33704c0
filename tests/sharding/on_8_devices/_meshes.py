"""Sharded tensors for tests."""

from __future__ import annotations

import jax
import numpy as np
import torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxtorch

Tensor = torch.Tensor
P = PartitionSpec

EXPLICIT = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
AUTO = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
MESHES = {"explicit": EXPLICIT, "auto": AUTO}


def sharded(tensor: Tensor, spec: PartitionSpec, mesh: jax.sharding.Mesh = AUTO) -> Tensor:
    """The values of a tensor on the CPU, over the mesh."""
    array = jax.device_put(tensor.detach().numpy(), NamedSharding(mesh, spec))
    return jaxtorch.to_torch(array).requires_grad_(tensor.requires_grad)


def spec_of(tensor: Tensor) -> PartitionSpec | None:
    """The spec of a tensor on the mesh, without trailing None; None if it is on one device."""
    sharding = jaxtorch.to_jax(tensor.detach()).sharding
    if not isinstance(sharding, NamedSharding):
        return None
    names = list(sharding.spec)
    while names and names[-1] is None:
        names.pop()
    return P(*names)


def numbers(*size: int, seed: int = 0) -> Tensor:
    """Random values on the CPU."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(size, np.float32))
