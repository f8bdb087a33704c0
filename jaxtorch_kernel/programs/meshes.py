"""Compiled programs whose inputs lie on several devices.

XLA compiles a program for the sharding of each input, and for one set of devices. A program with an input on a mesh is
compiled for that mesh: its other inputs are replicated. Before each call, an input that lies otherwise is laid out.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Sharding

from ..storage import placement
from .compiling import Executable

Aval = jax.ShapeDtypeStruct


def avals_on_mesh(avals: Sequence[Aval], name: str) -> list[Aval] | None:
    """The avals of a program that runs on a mesh, with the sharding of each; None if it runs on one device.

    Raises:
        RuntimeError: the inputs lie on two meshes.
    """
    given = [aval.sharding for aval in avals if aval.sharding is not None]
    where = placement.common(given, name)
    if where is None or not placement.on_mesh(where):
        return None
    return [aval.update(sharding=_on(where, aval.sharding)) for aval in avals]


def _on(where: Sharding, sharding: Sharding | None) -> Sharding:
    if sharding is None or not placement.on_mesh(sharding):
        return where
    return placement.propagated(sharding)


def with_inputs_laid_out(call: Executable, avals: Sequence[Aval]) -> Executable:
    """A compiled program that first lays its inputs out as it was compiled for."""
    wanted = [(aval.sharding, len(aval.shape)) for aval in avals]

    def run(*arrays: jax.Array) -> list[jax.Array]:
        return call(*(_laid_out(a, *w) for a, w in zip(arrays, wanted, strict=True)))

    return run


def _laid_out(array: jax.Array, sharding: Sharding, rank: int) -> jax.Array:
    if isinstance(array, jax.Array) and array.sharding.is_equivalent_to(sharding, rank):
        return array
    return jax.device_put(array, sharding)
