"""Compiled programs that run on several devices.

XLA compiles a program for the sharding of each input, and for one set of devices. A program with an input on a mesh, or
whose code names a mesh (in a sharding constraint, a `shard_map`), is compiled for that mesh: its other inputs are
replicated. Before each call, an input with another sharding is copied to the one that the program expects.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import jax
from jax.extend.core import Jaxpr
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from ..storage import in_flight, placement
from .compiling import Executable
from .jaxprs import jaxprs

Aval = jax.ShapeDtypeStruct


def named_meshes(jaxpr: Jaxpr) -> list[Sharding]:
    """The meshes that the equations of a jaxpr name, each as the replicated sharding on it.

    A mesh without devices (`jax.sharding.AbstractMesh`) means the user's context mesh, if that has the same shape.
    """
    meshes: dict[Mesh, None] = {}
    for inner in jaxprs(jaxpr):
        for equation in inner.eqns:
            values = (equation.params[p] for p in _NAMING if p in equation.params)
            for value in values:
                for part in value if isinstance(value, tuple) else (value,):
                    mesh = _with_devices(getattr(part, "mesh", part))
                    if mesh is not None and mesh.size > 1:
                        meshes[mesh] = None
    return [placement.replicated(NamedSharding(mesh, PartitionSpec())) for mesh in meshes]


# The parameters of JAX's equations that hold a mesh, a sharding, or a tuple of shardings.
_NAMING = ("sharding", "mesh", "dst_sharding", "out_sharding", "in_shardings", "out_shardings")


def _with_devices(mesh: object) -> Mesh | None:
    if isinstance(mesh, AbstractMesh):
        context = placement.context_mesh()
        return context if isinstance(context, Mesh) and context.shape == mesh.shape else None
    return mesh if isinstance(mesh, Mesh) else None


def avals_on_mesh(
    avals: Sequence[Aval], name: str, meshes: Sequence[Sharding] = ()
) -> list[Aval] | None:
    """The avals of a program that runs on a mesh, with the sharding of each; None if it runs on one device.

    Args:
        avals: the inputs.
        name: of the program, for messages.
        meshes: those that the program names.

    Raises:
        RuntimeError: the inputs are on two meshes.
    """
    given = [aval.sharding for aval in avals if aval.sharding is not None]
    where = placement.common([*given, *meshes], name)
    if where is None or not placement.on_mesh(where):
        return None
    return [aval.update(sharding=_on(where, aval.sharding)) for aval in avals]


def _on(where: Sharding, sharding: Sharding | None) -> Sharding:
    if sharding is None or not placement.on_mesh(sharding):
        return where
    return placement.propagated(sharding)


def with_resharded_inputs(call: Executable, avals: Sequence[Aval]) -> Executable:
    """A compiled program that first copies its inputs to the shardings for which it was compiled."""
    inputs = [_Input(aval) for aval in avals]
    where = next(aval.sharding for aval in avals if aval.sharding is not None)

    def run(*arrays: jax.Array) -> list[jax.Array]:
        in_flight.before_launch(where)
        return call(*(x.resharded(array) for x, array in zip(inputs, arrays, strict=True)))

    return run


_KEPT_BYTES = 1 << 16  # of a copy that is kept: a learning rate, not a batch


class _Input:
    """The sharding that an input of a program must have.

    Replicating a scalar takes as long as the launch of a program, and comparing two shardings a tenth of that. Most
    inputs have the same sharding at each call, and a learning rate is the same array. So both are remembered.
    """

    __slots__ = ("_kept", "_rank", "_seen", "_sharding")

    def __init__(self, aval: Aval):
        self._sharding, self._rank = aval.sharding, len(aval.shape)
        self._seen: Sharding | None = None  # the last that was equivalent
        self._kept: tuple[weakref.ref[jax.Array], jax.Array] | None = None  # an array and its copy

    def resharded(self, array: jax.Array) -> jax.Array:
        """The array, or a copy with the sharding that the program needs."""
        if not isinstance(array, jax.Array):
            return placement.moved(array, self._sharding)
        where = array.sharding
        if where is self._seen:
            return array
        if where.is_equivalent_to(self._sharding, self._rank):
            self._seen = where
            return array
        kept = self._kept
        if kept is not None and kept[0]() is array and not kept[1].is_deleted():
            return kept[1]
        copy = placement.moved(array, self._sharding)
        if array.nbytes <= _KEPT_BYTES:
            self._kept = weakref.ref(array), copy
        return copy
