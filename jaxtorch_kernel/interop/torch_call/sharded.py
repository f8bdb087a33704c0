"""A torch function on arrays that are sharded over several devices: each device calls it on its own shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .outputs import declared


def over_devices(
    wrap: Callable[..., Callable[..., Any]],
    examples: tuple[object, ...],
    output_shapes: object,
    output_spec: object,
) -> Callable[..., Any]:
    """A JAX function that calls a torch function on every device's part of its arguments.

    XLA cannot split an opaque call, and would gather the arguments. So the call is wrapped in a
    `shard_map`, whose specs for the arguments are those of the examples.

    Args:
        wrap: makes the JAX function for one device, given `output_shapes`.
        examples: arrays, sharded like the arguments.
        output_shapes: the shapes of the whole results.
        output_spec: how the results are sharded: a pytree of `PartitionSpec`s like them, or one for all.

    Raises:
        TypeError: no example is sharded over a mesh.
    """
    shardings = map(_sharding_over_mesh, jax.tree.leaves(examples))
    meshes = {s.mesh for s in shardings if s is not None}
    if len(meshes) != 1:
        raise TypeError(
            "out_specs needs example arguments that are sharded over one mesh, but they are sharded over "
            f"{len(meshes)}: pass arrays placed with jax.device_put(x, NamedSharding(mesh, spec)), or call it "
            "inside jax.shard_map, without out_specs"
        )
    (mesh,) = meshes
    in_specs = jax.tree.map(_spec_of, examples)
    local = wrap(
        output_shapes=None
        if output_shapes is None
        else _parts(mesh, examples, output_shapes, output_spec)
    )
    return jax.shard_map(
        local, mesh=mesh, in_specs=in_specs, out_specs=output_spec, check_vma=False
    )


def _sharding_over_mesh(example: object) -> NamedSharding | None:
    sharding = getattr(example, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def _spec_of(example: object) -> PartitionSpec:
    sharding = _sharding_over_mesh(example)
    return PartitionSpec() if sharding is None else sharding.spec


def _parts(
    mesh: Mesh | AbstractMesh, examples: object, output_shapes: object, output_spec: object
) -> object:
    """The shapes of the results on one device, given those of the whole results."""
    whole, tree = declared(output_shapes, jax.tree.leaves(examples))
    specs = jax.tree.leaves(jax.tree.broadcast(output_spec, jax.tree.unflatten(tree, whole)))
    parts = [
        jax.ShapeDtypeStruct(NamedSharding(mesh, spec).shard_shape(aval.shape), aval.dtype)
        for aval, spec in zip(whole, specs, strict=True)
    ]
    return jax.tree.unflatten(tree, parts)
