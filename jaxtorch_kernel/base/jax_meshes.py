"""The context mesh of JAX: that of `jax.set_mesh`, of `jax.sharding.use_abstract_mesh`, or of a `with mesh:` block.

JAX traces and compiles every program for the context mesh, and a program of one device fails under it. So `in_context`
replaces the context mesh of the thread in a block. JAX's own context managers cannot do this while JAX traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax.sharding import AbstractMesh, Mesh

from .jax_private import HOOKS

AnyMesh = Mesh | AbstractMesh

_CONCRETE = HOOKS.find("jax._src.config.device_context")
_ABSTRACT = HOOKS.find("jax._src.config.abstract_mesh_context_manager")
_NO_MESH = AbstractMesh((), ())

# The mesh of `jax.set_mesh` with its devices; JAX keys its traces by the shape of the mesh alone.
devices_of_context: Callable[[], Mesh | None] = (
    (lambda: None) if _CONCRETE is None else functools.partial(getattr, _CONCRETE, "value")
)


def context_mesh() -> AnyMesh | None:
    """The context mesh of this thread; None if there is none. It lacks devices if only an abstract mesh was set."""
    mesh: AnyMesh | None = None if _CONCRETE is None else _CONCRETE.value
    if mesh is None or mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh is None or mesh.empty:
        mesh = mesh_of_with_block()
    return mesh


def mesh_of_with_block() -> Mesh | None:
    """The mesh of the innermost `with mesh:` block of this thread; None if there is none."""
    resources = HOOKS.find("jax._src.mesh.thread_resources")
    if resources is None or resources.env.physical_mesh.empty:
        return None
    mesh: Mesh = resources.env.physical_mesh
    return mesh


@contextmanager
def in_context(mesh: AnyMesh | None) -> Iterator[None]:
    """Make a mesh the context mesh of this thread in the block; None: have none."""
    if _CONCRETE is None or _ABSTRACT is None:
        yield
        return
    abstract = _NO_MESH if mesh is None else getattr(mesh, "abstract_mesh", mesh)
    before = _ABSTRACT.swap_local(abstract)
    concrete = _CONCRETE.swap_local(mesh if isinstance(mesh, Mesh) else None)
    try:
        yield
    finally:
        _CONCRETE.set_local(concrete)
        _ABSTRACT.set_local(before)
