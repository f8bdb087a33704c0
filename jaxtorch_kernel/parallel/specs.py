"""Specs: the forms in which a user writes a sharding, checked and converted to JAX's `NamedSharding`.

A spec uses JAX's types (`PartitionSpec`, `NamedSharding`, or a name per dimension) or torch's
(`torch.distributed.tensor.Shard` and `Replicate`, one for each axis of the mesh).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from ..storage import placement
from . import meshes

if TYPE_CHECKING:  # imported only when a user passes one: it takes half a second
    from torch.distributed.tensor.placement_types import Placement

Names: TypeAlias = str | tuple[str, ...] | None  # the axes of the mesh along one dimension
Spec: TypeAlias = "PartitionSpec | Sharding | Placement | Names | Sequence[Placement | Names]"
AnyMesh = Mesh | AbstractMesh

UNCONSTRAINED = PartitionSpec.UNCONSTRAINED


def resolved(
    spec: Spec,
    mesh: AnyMesh | None,
    shape: Sequence[int],
    what: str,
    otherwise: AnyMesh | None = None,
) -> Sharding:
    """The sharding that a spec describes for a tensor of this shape.

    Args:
        spec: as the user wrote it.
        mesh: the mesh, unless the spec has its own; by default that of `jax.set_mesh`.
        shape: the shape of the tensor.
        what: the tensor, for messages: "parameter 'fc.weight'".
        otherwise: the mesh to use if there is no other.

    Raises:
        ValueError: there is no mesh, the spec does not fit it or the tensor, or it has another mesh.
        TypeError: `spec` is not a spec, or `mesh` is not a mesh.
    """
    given = meshes.chosen(mesh)
    given = otherwise if given is None else given
    if isinstance(spec, Sharding):
        return _checked(spec, mesh, shape, what)
    if given is None:
        raise ValueError(
            f"{what}: no mesh was given: pass mesh=jaxtorch.mesh(...), or call jax.set_mesh(mesh) first"
        )
    partition = _partition(spec, given, len(shape), what)
    check(partition, given, shape, what)
    return placement.propagated(NamedSharding(given, partition))


def _checked(sharding: Sharding, mesh: AnyMesh | None, shape: Sequence[int], what: str) -> Sharding:
    """One of JAX's shardings that a user passed."""
    if isinstance(sharding, NamedSharding):
        if mesh is not None and _same_mesh_key(mesh) != _same_mesh_key(sharding.mesh):
            raise ValueError(
                f"{what}: the sharding is on the mesh {dict(sharding.mesh.shape)}, but mesh= is "
                f"{dict(mesh.shape)}: omit mesh"
            )
        check(sharding.spec, sharding.mesh, shape, what)
    return placement.propagated(sharding)


def _same_mesh_key(mesh: AnyMesh) -> object:
    """A key that is equal for meshes that differ only in the types of their axes."""
    return tuple(mesh.shape.items()), mesh.devices.tolist() if isinstance(mesh, Mesh) else None


def _partition(spec: Spec, mesh: AnyMesh, rank: int, what: str) -> PartitionSpec:
    """A spec as a `PartitionSpec`."""
    if isinstance(spec, PartitionSpec):
        return spec
    if spec is None:
        return PartitionSpec()
    if isinstance(spec, str):
        return PartitionSpec(spec)
    entries = spec if isinstance(spec, list | tuple) else [spec]
    placements = [e for e in entries if _is_placement(e)]
    if entries and len(placements) == len(entries):
        return _of_placements(placements, mesh, rank, what)
    if isinstance(spec, list | tuple) and all(
        isinstance(e, str | None) or _are_names(e) for e in spec
    ):
        return PartitionSpec(*spec)
    raise TypeError(
        f"{what}: {spec!r} is not a spec: write jax.sharding.PartitionSpec('{mesh.axis_names[0]}', None), an axis "
        "for each dimension, or torch's placements [Shard(0), Replicate()], one for each axis of the mesh"
    )


def _are_names(entry: object) -> bool:
    return isinstance(entry, list | tuple) and all(isinstance(name, str) for name in entry)


def _is_placement(entry: object) -> TypeGuard[Placement]:
    if not type(entry).__module__.startswith("torch.distributed"):
        return False
    from torch.distributed.tensor.placement_types import Placement

    return isinstance(entry, Placement)


def _of_placements(
    placements: Sequence[Placement], mesh: AnyMesh, rank: int, what: str
) -> PartitionSpec:
    """torch's placements (one for each axis of the mesh) as JAX's spec (one entry for each dimension)."""
    if len(placements) != len(mesh.axis_names):
        raise ValueError(
            f"{what}: {len(placements)} placements were given for the {len(mesh.axis_names)} axes "
            f"{meshes.listed(mesh.axis_names)} of the mesh: each axis needs one"
        )
    by_dimension: dict[int, tuple[str, ...]] = {}
    for placed, name in zip(placements, mesh.axis_names, strict=True):
        if placed.is_partial():
            raise ValueError(
                f"{what}: Partial describes a result that is not yet summed, which only XLA uses: give Shard or "
                "Replicate"
            )
        if placed.is_replicate():
            continue
        dimension = getattr(placed, "dim", None)
        if not placed.is_shard() or not isinstance(dimension, int):
            raise ValueError(f"{what}: {placed!r} is not supported: give Shard or Replicate")
        if dimension < -rank:
            raise ValueError(
                f"{what}: {placed!r} is out of range for a tensor with {rank} dimensions"
            )
        dimension += rank if dimension < 0 else 0
        by_dimension[dimension] = (*by_dimension.get(dimension, ()), name)
    entries = [by_dimension.get(d) for d in range(max(by_dimension, default=-1) + 1)]
    return PartitionSpec(*(e[0] if e is not None and len(e) == 1 else e for e in entries))


def axes_of(entry: object) -> tuple[str, ...]:
    """The axes along one dimension of a `PartitionSpec`."""
    if entry is None or entry is UNCONSTRAINED:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]  # a tuple of names


def check(spec: PartitionSpec, mesh: AnyMesh, shape: Sequence[int], what: str) -> None:
    """Check that a spec fits a mesh and a shape.

    Raises:
        ValueError: it does not.
    """
    names = [name for entry in spec for name in axes_of(entry)]
    for name in names:
        if name not in mesh.axis_names:
            close = difflib.get_close_matches(name, mesh.axis_names, 1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(
                f"{what}: {_written(spec)} names the axis {name!r}, but the mesh has {meshes.listed(mesh.axis_names)}"
                f"{hint}"
            )
        if names.count(name) > 1:
            raise ValueError(f"{what}: {_written(spec)} names the axis {name!r} twice")
    if len(spec) > len(shape):
        raise ValueError(
            f"{what}: {_written(spec)} has {len(spec)} entries, but the tensor has the shape {tuple(shape)}"
        )
    for dimension, entry in enumerate(spec):
        axes = axes_of(entry)
        parts = math.prod(mesh.shape[name] for name in axes)
        if shape[dimension] % parts:
            more = -(-shape[dimension] // parts) * parts
            raise ValueError(
                f"{what}: dimension {dimension} has {shape[dimension]} elements, which is not divisible by the "
                f"{parts} devices along {meshes.listed(axes)}: pad it to {more}, or write None there"
            )


def _written(spec: PartitionSpec) -> str:
    """A spec as JAX prints it, for messages."""
    return str(spec).replace("PartitionSpec", "P")
