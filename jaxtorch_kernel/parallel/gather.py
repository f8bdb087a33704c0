"""Tensors over several processes: `from_local` joins the parts that the processes have, `gather` reads the whole."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import jax
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..base.torch_private import pytree
from ..interop.values import to_jax, to_torch
from ..storage import placement
from ..storage.transfer import as_numpy, host_values, to_host
from . import meshes

Tensor = torch.Tensor
T = TypeVar("T")


def gather(tree: T) -> T:
    """Full copies on the CPU of tensors that may be sharded over many devices and processes.

    For a tensor over several processes, this is a collective operation: every process must call it, with the same
    tensors in the same order, and every process gets the whole. Tensors are gathered one at a time, so the devices
    need memory for only one full tensor.

    Args:
        tree: a tensor, or a pytree of them such as `module.state_dict()`. Other leaves are returned unchanged.

    Returns:
        The same structure, with detached CPU tensors of the same shapes and dtypes. A tensor that occurs twice is one
        tensor in the result.

    Example:
        >>> import torch, jaxtorch
        >>> jaxtorch.gather({"loss": torch.ones(2, device="jax"), "step": 3})
        {'loss': tensor([1., 1.]), 'step': 3}
    """
    done: dict[int, Tensor] = {}

    def whole(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in done:
            done[id(leaf)] = _whole(leaf.detach())
        return done[id(leaf)]

    gathered: T = pytree.tree_map(whole, tree)
    return gathered


def _whole(tensor: Tensor) -> Tensor:
    if tensor.device.type != "jax":
        return tensor.cpu()
    array = to_jax(tensor)
    if not placement.is_readable(array.sharding):
        with jax.enable_x64(True):
            array = jax.jit(_same, out_shardings=placement.replicated(array.sharding))(array)
    return to_host(host_values(array))


def _same(x: jax.Array) -> jax.Array:
    return x


def from_local(
    tree: T, spec: NamedSharding | PartitionSpec | str | None = None, mesh: Mesh | None = None
) -> T:
    """Join the parts that the processes have into tensors over all processes.

    This is `jax.make_array_from_process_local_data`. Along the dimensions that `spec` divides between processes, the
    parts are concatenated in the order of the processes. Along the others, every process passes the same values. All
    processes must pass parts of the same size: drop the last batch if it is smaller (`drop_last=True`).

    Args:
        tree: a tensor (of the CPU or the jax device), or a pytree of them such as a batch.
        spec: the sharding of the whole, by default its first dimension over all axes of the mesh. A `NamedSharding`
            has its own mesh.
        mesh: by default that of `jax.set_mesh`, else all devices along one axis, "data".

    Returns:
        The same structure, with tensors on the jax device, of the dtypes of the parts.

    Raises:
        ValueError: the spec names an axis that the mesh does not have, or the size of a part is not divisible by the
            number of this process's devices.

    Example:
        >>> import torch, jaxtorch
        >>> x = jaxtorch.from_local(torch.ones(8, 2), "data", jaxtorch.mesh(-1, "data"))
        >>> x.shape[0] == 8 * jaxtorch.distributed.world_size()
        True
    """
    sharding = _sharding(spec, mesh)
    joined: T = pytree.tree_map_only(Tensor, partial(_joined, sharding=sharding), tree)
    return joined


def _sharding(spec: NamedSharding | PartitionSpec | str | None, mesh: Mesh | None) -> NamedSharding:
    if isinstance(spec, NamedSharding):
        return spec
    mesh = meshes.chosen_or_all(mesh, "from_local")
    if not isinstance(spec, PartitionSpec):
        spec = PartitionSpec(mesh.axis_names if spec is None else spec)
    return NamedSharding(mesh, spec)


def _joined(part: Tensor, sharding: NamedSharding) -> Tensor:
    local = as_numpy(part.detach().cpu())
    with jax.enable_x64(True):
        try:
            array = jax.make_array_from_process_local_data(sharding, local)
        except ValueError as error:
            raise ValueError(
                f"from_local cannot shard a part of size {list(part.shape)} as {sharding.spec} on the mesh "
                f"{dict(sharding.mesh.shape)}: {error}"
            ) from None
    tensor: Tensor = to_torch(array, device="jax")
    return tensor
