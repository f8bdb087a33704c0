"""Meshes: arrays of devices with a name for each axis. They are JAX's own objects."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeGuard

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ..storage import placement


def mesh(
    shape: int | Sequence[int],
    axis_names: str | Sequence[str],
    *,
    axis_types: AxisType | Sequence[AxisType] = AxisType.Auto,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Arrange devices in a mesh, like `jax.make_mesh`. The axes have the type Auto, and some devices may stay unused.

    Args:
        shape: the number of devices along each axis. One of them may be -1, for all remaining devices.
        axis_names: the name of each axis.
        axis_types: one type for all axes, or one for each. The device's operators treat every axis as Auto: XLA
            chooses the sharding of results.
        devices: by default the first ones of `jax.devices()`. If the mesh has all devices, JAX orders them by the
            topology of the hardware.

    Returns:
        A `jax.sharding.Mesh`.

    Raises:
        ValueError: there are too few devices, the names do not match the shape, or a size is not positive.
        TypeError: a size is not an integer, a name is not a non-empty string, or the mesh has no axes.

    Example:
        >>> import jaxtorch
        >>> print(jaxtorch.mesh((1, 1), ("data", "model")))
        Mesh('data': 1, 'model': 1, axis_types=(Auto, Auto))
    """
    names = (axis_names,) if isinstance(axis_names, str) else axis_names
    sizes = (shape,) if isinstance(shape, SupportsIndex) else shape
    if not _all_of(sizes, SupportsIndex) or not _all_of(names, str) or not all((sizes, *names)):
        raise TypeError(
            "a mesh takes whole numbers and the names of its axes, as in jaxtorch.mesh((4, 2), ('data', 'model')), "
            f"not {shape!r} and {axis_names!r}"
        )
    wanted, names = tuple(map(operator.index, sizes)), tuple(names)
    types = (axis_types,) * len(names) if isinstance(axis_types, AxisType) else tuple(axis_types)
    if len(wanted) != len(names):
        raise ValueError(f"a mesh of shape {wanted} needs {len(wanted)} axis names, not {names}")
    if len(set(names)) != len(names):
        raise ValueError(f"the axes of a mesh must have different names, not {names}")
    available = list(jax.devices() if devices is None else devices)
    filled = _filled(wanted, len(available))
    count = math.prod(filled)
    if count > len(available):
        raise ValueError(
            f"a mesh of shape {filled} needs {count} devices, but there are {len(available)}"
            f"{_how_to_get_more(available, count)}"
        )
    if devices is None and count == len(available):
        return jax.make_mesh(filled, names, axis_types=types)
    return Mesh(np.array(available[:count]).reshape(filled), names, axis_types=types)


def _all_of(values: object, kind: type) -> TypeGuard[Sequence[Any]]:
    """Whether a list or tuple has only values of a type, and no bool."""
    return isinstance(values, list | tuple) and all(
        isinstance(v, kind) and not isinstance(v, bool) for v in values
    )


def _filled(shape: tuple[int, ...], available: int) -> tuple[int, ...]:
    """The shape with its -1 replaced."""
    known = math.prod(n for n in shape if n != -1)
    if any(n < 1 and n != -1 for n in shape) or shape.count(-1) > 1:
        raise ValueError(
            f"each size of a mesh must be positive, and at most one may be -1, but the shape is {shape}"
        )
    if -1 in shape and available % known:
        raise ValueError(
            f"{available} devices cannot fill {shape}: they are not divisible by the {known} of the other axes"
        )
    return tuple(available // known if n == -1 else n for n in shape)


def _how_to_get_more(available: Sequence[jax.Device], count: int) -> str:
    if not available or available[0].platform != "cpu":
        return ""
    return (
        f": to simulate more on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count={count} before "
        "the first use of JAX"
    )


def init_device_mesh(
    device_type: str, mesh_shape: Sequence[int], *, mesh_dim_names: Sequence[str] | None = None
) -> Mesh:
    """`jaxtorch.mesh` with the arguments of `torch.distributed.device_mesh.init_device_mesh`.

    Args:
        device_type: "jax".
        mesh_shape: the number of devices along each axis.
        mesh_dim_names: the names of the axes, by default `dim_0`, `dim_1` and so on.

    Returns:
        A `jax.sharding.Mesh`.

    Raises:
        ValueError: `device_type` is not "jax", or as in `mesh`.

    Example:
        >>> import jaxtorch
        >>> print(jaxtorch.init_device_mesh("jax", (1,), mesh_dim_names=("data",)))
        Mesh('data': 1, axis_types=(Auto,))
    """
    if device_type != "jax":
        raise ValueError(f"jaxtorch makes meshes of the device type 'jax', not {device_type!r}")
    names = mesh_dim_names or [f"dim_{i}" for i in range(len(mesh_shape))]
    return mesh(tuple(mesh_shape), tuple(names))


def chosen(given: object) -> Mesh | AbstractMesh | None:
    """The mesh that a caller passed, else that of `jax.set_mesh` or of `with mesh:`, else None.

    Raises:
        TypeError: the argument is not one of JAX's meshes.
    """
    if given is None:
        return placement.context_mesh()
    if isinstance(given, Mesh | AbstractMesh):
        return given
    raise TypeError(
        f"mesh must be a jax.sharding.Mesh, not a {type(given).__module__}.{type(given).__qualname__}: make one "
        "with jaxtorch.mesh or jaxtorch.init_device_mesh"
    )


def chosen_or_all(given: Mesh | None, caller: str) -> Mesh:
    """The mesh to train on: as in `chosen`, else all devices along one axis, "data"."""
    choice = chosen(given)
    return mesh(-1, "data") if choice is None else concrete(choice, caller)


def concrete(mesh: Mesh | AbstractMesh, caller: str) -> Mesh:
    """The mesh, checked to have devices.

    Raises:
        TypeError: it is abstract.
    """
    if isinstance(mesh, AbstractMesh):
        raise TypeError(f"{caller}: an AbstractMesh has no devices: pass a jax.sharding.Mesh")
    return mesh


def auto(mesh: Mesh) -> Mesh:
    """The mesh with all axes of the type Auto, as arrays of the device have it."""
    sharding = placement.propagated(NamedSharding(mesh, PartitionSpec()))
    assert isinstance(sharding, NamedSharding)
    return concrete(sharding.mesh, "mesh")


def one_axis(mesh: Mesh, axis: str | None, caller: str) -> str:
    """The axis of a mesh that a caller named, else its only one, else "data".

    Raises:
        ValueError: the mesh has no such axis, or none was named and several are possible.
    """
    names: tuple[str, ...] = mesh.axis_names
    if axis is None and len(names) == 1:
        return names[0]
    wanted = "data" if axis is None else axis
    if wanted in names:
        return wanted
    if axis is None:
        raise ValueError(
            f"{caller}: the mesh has the axes {listed(names)}: name one of them, axis={names[0]!r}"
        )
    raise ValueError(f"{caller}: the mesh has no axis {axis!r}, only {listed(names)}")


def listed(names: Sequence[str]) -> str:
    """Names in a list for a message.

    Example:
        >>> listed(["data", "model"])
        "'data' and 'model'"
    """
    quoted = [repr(name) for name in names]
    return (
        " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else "".join(quoted)
    )
