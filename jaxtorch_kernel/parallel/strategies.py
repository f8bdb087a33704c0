"""The usual ways to train on many devices: data parallel, fully sharded, tensor parallel.

Each only chooses shardings for a module's tensors and inputs; XLA derives the communication. They compose on meshes of
several axes: each shards along one axis, and leaves the others unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from jax.sharding import Mesh, PartitionSpec
from torch import nn

from . import meshes, modules, styles, units
from .batches import spread_batches
from .modules import SharedTensors, present_spec
from .specs import axes_of

if TYPE_CHECKING:
    from .styles import Plan

M = TypeVar("M", bound=nn.Module)


def data_parallel(
    module: M,
    mesh: Mesh | None = None,
    *,
    axis: str | None = None,
    batch_dimension: int = 0,
    shard_batch: bool = True,
) -> M:
    """Train with a copy of the module and a part of each batch on every device.

    Parameters and buffers are replicated along the axis, in place. A forward pre-hook shards the inputs of the module
    along their batch dimension; XLA sums the gradients over the devices. The loss and all gradients are those of the
    whole batch, and so are the statistics of BatchNorm.

    Args:
        module: the module, changed in place. An optimizer that was created before remains valid. A module on the CPU is
            moved to the jax device.
        mesh: by default that of `jax.set_mesh`, else all devices along one axis, "data".
        axis: the axis of the mesh; by default the only one, or "data".
        batch_dimension: the batch dimension of the inputs. An input whose size there is not divisible is replicated.
        shard_batch: False does not shard the inputs, and removes the hook of an earlier call.

    Returns:
        The module.

    Raises:
        ValueError: the mesh has no such axis. Nothing is changed then.
        TypeError: a parameter has no array (lazy, sparse, meta).

    Example:
        >>> import torch, jaxtorch
        >>> model = jaxtorch.data_parallel(torch.nn.Linear(4, 2), jaxtorch.mesh(1, "data"))
        >>> jaxtorch.sharding_of(model.weight).spec
        P()
        >>> jaxtorch.sharding_of(model(torch.ones(8, 4, device="jax"))).num_devices
        1
    """
    return _train(module, "data_parallel", _copied, mesh, axis, batch_dimension, shard_batch)


def fsdp(
    module: M,
    mesh: Mesh | None = None,
    *,
    axis: str | None = None,
    batch_dimension: int = 0,
    shard_batch: bool = True,
) -> M:
    """Train with the parameters, their gradients and the optimizer's state divided among the devices.

    Each parameter is sharded in place, along its largest dimension that is divisible by the size of the axis; one
    without such a dimension is replicated, and so are buffers. XLA gathers a parameter where it is used. Inputs are
    sharded as by `data_parallel`.

    Call it for each block first, as with `fully_shard`, and then for the whole module: captured code gathers the
    parameters of a block when it calls the block, and never its activations.

    Args:
        module: the module, changed in place. An optimizer that was created before remains valid. A module on the CPU is
            moved to the jax device.
        mesh: by default that of `jax.set_mesh`, else all devices along one axis, "data".
        axis: the axis of the mesh; by default the only one, or "data". Parameters already sharded along it stay
            unchanged.
        batch_dimension: the batch dimension of the inputs. An input whose size there is not divisible is replicated.
        shard_batch: False does not shard the inputs, and removes the hook of an earlier call.

    Returns:
        The module.

    Raises:
        ValueError: the mesh has no such axis. Nothing is changed then.
        TypeError: a parameter has no array (lazy, sparse, meta).

    Example:
        >>> import torch, jaxtorch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> for block in model:
        ...     _ = jaxtorch.fsdp(block, jaxtorch.mesh(1, "data"))
        >>> model = jaxtorch.fsdp(model, jaxtorch.mesh(1, "data"))
        >>> [jaxtorch.sharding_of(p).spec for p in model[0].parameters()]
        [P('data',), P('data',)]
    """
    _train(module, "fsdp", _cut, mesh, axis, batch_dimension, shard_batch)
    where = meshes.chosen_or_all(mesh, "fsdp")
    units.make_unit(module, where, meshes.one_axis(where, axis, "fsdp"))
    return module


def fully_shard(module: M, *, mesh: Mesh | None = None, axis: str | None = None) -> M:
    """`jaxtorch.fsdp` by the name and the arguments of `torch.distributed.fsdp.fully_shard`.

    Args:
        module: a block, or the whole module after its blocks; changed in place.
        mesh: by default that of `jax.set_mesh`, else all devices along one axis, "data".
        axis: the axis of the mesh; by default the only one, or "data".

    Returns:
        The module.

    Raises:
        ValueError: the mesh has no such axis. Nothing is changed then.
        TypeError: a parameter has no array (lazy, sparse, meta).

    Example:
        >>> import torch, jaxtorch
        >>> mesh = jaxtorch.init_device_mesh("jax", (1,))
        >>> model = jaxtorch.fully_shard(torch.nn.Linear(4, 8), mesh=mesh)
        >>> jaxtorch.sharding_of(model.weight).spec
        P('dim_0',)

    See https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    return fsdp(module, mesh, axis=axis)


def _train(
    module: M,
    name: str,
    choose: Callable[[PartitionSpec, Mesh, str, SharedTensors], PartitionSpec],
    mesh: Mesh | None,
    axis: str | None,
    batch_dimension: int,
    shard_batch: bool,
) -> M:
    """Shard each tensor and the batch along an axis; `choose` computes a tensor's spec from its present one."""
    if isinstance(batch_dimension, bool) or not isinstance(batch_dimension, int):
        raise TypeError(f"{name}: batch_dimension must be a whole number, not {batch_dimension!r}")
    where = meshes.chosen_or_all(mesh, name)
    along = meshes.one_axis(where, axis, name)
    modules.shard_each(
        module, lambda each, mesh: choose(present_spec(each, mesh), mesh, along, each), where, name
    )
    spread_batches(module, where, along, batch_dimension, shard_batch)
    return module


def _copied(spec: PartitionSpec, mesh: Mesh, along: str, each: SharedTensors) -> PartitionSpec:
    """The spec without the axis."""
    entries = [[name for name in axes_of(entry) if name != along] for entry in spec]
    return PartitionSpec(*(tuple(names) or None for names in entries))


def _cut(spec: PartitionSpec, mesh: Mesh, along: str, each: SharedTensors) -> PartitionSpec:
    """The spec with one more axis, along the largest dimension it divides; unsharded dimensions come first.

    A buffer keeps its spec. XLA would compute the statistics that go into a sharded buffer in parts, and gather them.
    """
    if each.kind == "buffer":
        return spec
    shape = each.tensor.shape
    axes = [axes_of(spec[d]) if d < len(spec) else () for d in range(len(shape))]
    if any(along in names for names in axes):
        return spec
    sizes = [
        n // math.prod(mesh.shape[a] for a in names) for n, names in zip(shape, axes, strict=True)
    ]
    possible = [d for d, n in enumerate(sizes) if n and n % mesh.shape[along] == 0]
    if not possible:
        return spec
    best = max(possible, key=lambda d: (not axes[d], sizes[d], -d))
    axes[best] = (*axes[best], along)
    return PartitionSpec(*(names or None for names in axes))


def tensor_parallel(module: M, mesh: Mesh | None, rules: Plan) -> M:
    """Train with the layers of a module divided among the devices, by rules for its parameters.

    The usual rules shard the first linear layer of a pair along its outputs and the second along its inputs. The block
    then needs one sum over the devices forward, and one backward. To shard the inputs as well, call `data_parallel` or
    `fsdp` afterwards, with another axis of the mesh.

    Args:
        module: the module, changed in place. An optimizer that was created before remains valid. A module on the CPU is
            moved to the jax device.
        mesh: the mesh; None for that of `jax.set_mesh`.
        rules: from patterns of names (as in `fnmatch`) to specs, as in `jaxtorch.shard`. The first pattern that
            matches a name applies; tensors that no pattern matches keep their sharding on the mesh, or are replicated.
            Also torch's styles for layers, as in `parallelize_module`: `{"*.q_proj": ColwiseParallel(), "*.o_proj":
            RowwiseParallel()}` shard a Linear or Embedding along the axis "model" or "tp", or the only one.

    Returns:
        The module.

    Raises:
        ValueError: a rule matches nothing, or its spec does not fit. Nothing is changed then.
        TypeError: the rules are not a dict, a style does not fit its layer, or a parameter has no array (lazy, sparse,
            meta).

    Example:
        >>> import torch, jaxtorch
        >>> from jax.sharding import PartitionSpec as P
        >>> mlp = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        >>> rules = {"0.weight": P("model", None), "0.bias": P("model"), "2.weight": P(None, "model")}
        >>> mlp = jaxtorch.tensor_parallel(mlp, jaxtorch.mesh(1, "model"), rules)
        >>> jaxtorch.sharding_of(mlp[2].weight).spec
        P(None, 'model')
    """
    if not isinstance(rules, dict) or not rules:
        raise TypeError(
            "tensor_parallel: rules must be a dict from names of parameters to specs, such as "
            f"{{'*.q_proj.weight': P('model', None)}}, not {rules!r}"
        )
    specs = styles.as_rules(module, rules, mesh, "tensor_parallel")
    modules.shard(module, specs, mesh, "tensor_parallel")
    return module
