"""`shard`, `reshard`, `replicate`: tensors, containers, modules and optimizers over a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from jax.sharding import Mesh

from ..device.sharded_optimizers import shard_state
from . import modules
from .constraint import Specs, placed
from .modules import Rules
from .specs import Spec

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

T = TypeVar("T")
Tensor = torch.Tensor


def shard(x: T, spec: Specs | Rules = None, mesh: Mesh | None = None) -> T:
    """Shard tensors over the devices of a mesh.

    As with `Tensor.to`, a tensor is copied unless it already has this sharding, and gradients flow back to x. A tensor
    on the CPU is moved to the jax device. A module is changed in place: its parameters and buffers stay the same
    objects, with their gradients, hooks and ties, so an existing optimizer remains valid. In captured code, `shard` is
    a constraint (`with_sharding_constraint`).

    Args:
        x: a tensor of any shape and dtype, a pytree of tensors, a `torch.nn.Module`, or an optimizer, whose state gets
            the shardings of its parameters (as it does in each step).
        spec: the sharding, in one of these forms:
            a `PartitionSpec`, which has the mesh's axis for each dimension, or a name, or a list of names and None;
            JAX's `NamedSharding`, which has its own mesh;
            torch's placements, `Shard(0)` or `[Shard(0), Replicate()]`, one for each axis of the mesh;
            None, which replicates the tensor on each device.
            For a container, also a container of specs. For a module, also rules: a dict from patterns of names
            (`"*.q_proj.weight"`, as in `fnmatch`) to specs. The first pattern that matches a name of a parameter
            or buffer applies. Tensors that no pattern matches keep their sharding on the mesh, or are replicated.
        mesh: by default that of `jax.set_mesh`, else the mesh of the tensor.

    Returns:
        A tensor or container like x; for a module or an optimizer, x itself.

    Raises:
        ValueError: a spec names an unknown axis, does not divide the tensor's sizes, or has too many entries; a rule
            matches nothing; there is no mesh. In all cases nothing is changed.
        TypeError: x, a spec or the mesh has the wrong type.

    Example:
        >>> import torch, jaxtorch
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jaxtorch.mesh((1, 1), ("data", "model"))
        >>> x = jaxtorch.shard(torch.arange(4.0).reshape(2, 2), P("data", "model"), mesh)
        >>> x.sum()
        tensor(6., device='jax:0')
        >>> layer = jaxtorch.shard(torch.nn.Linear(2, 4), {"weight": P("model", None)}, mesh)
        >>> jaxtorch.sharding_of(layer.weight).spec
        P('model',)
    """
    if isinstance(x, torch.optim.Optimizer):
        if spec is not None:
            raise TypeError("shard(optimizer) takes no spec: state is sharded like its parameters")
        shard_state(x)
        return x
    if isinstance(x, torch.nn.Module):
        modules.shard(x, cast("Spec | Rules", spec), mesh, "shard")
        return x
    return placed(x, spec, mesh, "shard")


def reshard(x: T, spec: Specs, mesh: Mesh | None = None) -> T:
    """Change the sharding of tensors: `jaxtorch.shard` for tensors, named as in JAX (`jax.sharding.reshard`).

    Args:
        x: a tensor of any shape and dtype, or a pytree of tensors.
        spec: as in `jaxtorch.shard`.
        mesh: by default that of `jax.set_mesh`, else the mesh of the tensor.

    Returns:
        The same values; gradients flow back to x.

    Raises:
        ValueError, TypeError: as `jaxtorch.shard`.

    Example:
        >>> import torch, jaxtorch
        >>> from jax.sharding import PartitionSpec as P
        >>> x = jaxtorch.shard(torch.zeros(4, 2), P("data"), jaxtorch.mesh(1, "data"))
        >>> jaxtorch.sharding_of(jaxtorch.reshard(x, P(None, "data"))).spec
        P(None, 'data')
    """
    return placed(x, spec, mesh, "reshard")


def replicate(x: T, mesh: Mesh | None = None) -> T:
    """Replicate tensors on each device of a mesh; a module's parameters and buffers in place.

    Args:
        x: a tensor of any shape and dtype, a pytree of tensors, or a module.
        mesh: by default that of `jax.set_mesh`, else the mesh of the tensor.

    Returns:
        The same values; a module itself.

    Raises:
        ValueError, TypeError: as `jaxtorch.shard`.

    Example:
        >>> import torch, jaxtorch
        >>> x = jaxtorch.replicate(torch.zeros(2), jaxtorch.mesh(1, "data"))
        >>> jaxtorch.sharding_of(x).spec
        P()
    """
    if isinstance(x, torch.nn.Module):
        modules.shard(x, None, mesh, "replicate")
        return x
    return placed(x, None, mesh, "replicate")


def distribute_tensor(
    tensor: Tensor, device_mesh: Mesh | None = None, placements: Sequence[Placement] | None = None
) -> Tensor:
    """Shard a leaf tensor over a mesh and return a new leaf, like `torch.distributed.tensor.distribute_tensor`.

    Args:
        tensor: a leaf of any shape and dtype.
        device_mesh: by default that of `jax.set_mesh`.
        placements: `Shard(dim)` or `Replicate()` for each axis of the mesh; by default replicated.

    Returns:
        A plain tensor on the jax device, with the values and `requires_grad` of the tensor.

    Raises:
        RuntimeError: the tensor is not a leaf.
        ValueError, TypeError: as `jaxtorch.shard`.

    Example:
        >>> import torch, jaxtorch
        >>> mesh = jaxtorch.init_device_mesh("jax", (1,))
        >>> w = jaxtorch.distribute_tensor(torch.ones(4, requires_grad=True), mesh, [jaxtorch.Shard(0)])
        >>> w.is_leaf, w.requires_grad, jaxtorch.sharding_of(w).spec
        (True, True, P('dim_0',))
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"distribute_tensor takes a tensor, not {type(tensor).__name__}")
    if placements is not None and not isinstance(placements, list | tuple):
        raise TypeError(
            "distribute_tensor takes a list of placements, one for each axis of the mesh, such as [Shard(0)], not "
            f"{placements!r}: jaxtorch.shard takes names of axes"
        )
    if not tensor.is_leaf:
        raise RuntimeError(
            "distribute_tensor takes leaf tensors, but this one was computed from others: use jaxtorch.shard, through "
            "which gradients flow"
        )
    spec = None if placements is None else list(placements)
    result = placed(tensor.detach(), spec, device_mesh, "distribute_tensor")
    return result.requires_grad_(tensor.requires_grad)
