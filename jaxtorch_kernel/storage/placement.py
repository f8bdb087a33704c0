"""Placement of arrays: on which JAX devices they lie, and where an operator runs.

torch sees one device, `jax:0`. Which JAX devices hold an array is its sharding, which is part of the buffer's Spec. So
a program compiled for one chip is never called with the arrays of another. New arrays are put on one device, which
`torch.jax.device(i)` chooses for a thread.

An operator with an input on several devices runs on all devices of that mesh. Inputs on one device are copied to each
of them. XLA chooses the sharding of the results; what the operator writes keeps its sharding.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

Device = int | str | torch.device | None  # what `torch.cuda`'s functions take, too

if TYPE_CHECKING:  # `torch.manual_seed` imports this module, and must not import jax
    import jax
    from jax.sharding import AbstractMesh, Mesh, Sharding

    AnyMesh = Mesh | AbstractMesh

_index: contextvars.ContextVar[int] = contextvars.ContextVar("jaxtorch_device", default=0)
_shardings: dict[int, Sharding] = {}


def devices() -> list[jax.Device]:
    """The local devices of JAX's default platform."""
    import jax

    return jax.local_devices()


def index() -> int:
    """The index of the current device in `devices()`."""
    return _index.get()


def set_index(i: int) -> contextvars.Token[int]:
    """Make device `i` current in this context.

    Raises:
        RuntimeError: the device does not exist.
    """
    count = len(devices())
    if not 0 <= i < count:
        raise RuntimeError(
            f"invalid jax device index {i}: JAX has {count} local device(s) here, "
            f"so torch.jax.device takes 0 to {count - 1}."
        )
    return _index.set(i)


def restore(token: contextvars.Token[int]) -> None:
    """Undo one `set_index`."""
    _index.reset(token)


def current() -> Sharding:
    """The sharding of new arrays."""
    i = _index.get()
    sharding = _shardings.get(i)
    if sharding is None:
        import jax

        sharding = _shardings[i] = jax.sharding.SingleDeviceSharding(devices()[i])
    return sharding


def on_mesh(sharding: Sharding) -> bool:
    """Whether an array with this sharding lies on more than one device."""
    return len(sharding.device_set) > 1


any_mesh = False  # whether any array of this process has ever been on a mesh


def note_sharding(sharding: Sharding) -> None:
    """Note where an array lies."""
    global any_mesh
    any_mesh = any_mesh or on_mesh(sharding)


def replicated(sharding: Sharding) -> Sharding:
    """The sharding that puts a full copy on each device of another sharding, for what a program takes beside it."""
    import jax

    if isinstance(sharding, jax.sharding.NamedSharding):
        return jax.sharding.NamedSharding(_auto(sharding.mesh), jax.sharding.PartitionSpec())
    if not on_mesh(sharding):
        return sharding
    mesh = jax.sharding.Mesh(list(sharding._device_assignment), ("devices",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def propagated(sharding: Sharding) -> Sharding:
    """The same sharding on a mesh along which XLA chooses the sharding of results, in its shortest form.

    Along an axis of type Explicit, JAX refuses operations whose result could be sharded in several ways.
    """
    import jax

    if not isinstance(sharding, jax.sharding.NamedSharding):
        return sharding
    axes = list(sharding.spec)
    while axes and axes[-1] is None:
        axes.pop()
    spec = jax.sharding.PartitionSpec(*axes)
    kind = sharding.memory_kind
    return jax.sharding.NamedSharding(_auto(sharding.mesh), spec, memory_kind=kind)


def _auto(mesh: AnyMesh) -> AnyMesh:
    import jax

    types = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
    if mesh.axis_types == types or not isinstance(mesh, jax.sharding.Mesh):
        return mesh
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def common(shardings: Iterable[Sharding], operator: str) -> Sharding | None:
    """Where an operator runs: on the mesh of those of its inputs that lie on one, else where the first lies.

    Raises:
        RuntimeError: the inputs lie on two meshes.
    """
    first = mesh = None
    for sharding in shardings:
        first = first or sharding
        if not on_mesh(sharding):
            continue
        if mesh is not None and sharding._device_assignment != mesh._device_assignment:
            raise RuntimeError(
                f"{operator}: the inputs lie on two meshes, {_devices(mesh)} and {_devices(sharding)}. "
                "Move one of them: jax.device_put(x, sharding), then jaxtorch.to_torch."
            )
        mesh = mesh or sharding
    return first if mesh is None else replicated(mesh)


def _devices(sharding: Sharding) -> str:
    devices: Iterable[jax.Device] = sharding._device_assignment
    numbers = ", ".join(str(device.id) for device in devices)
    mesh = getattr(sharding, "mesh", None)
    shape = f"{dict(mesh.shape)} of " if mesh is not None else ""
    return f"{shape}devices {numbers}"


def index_of(device: Device = None) -> int:
    """The index in `devices()` that `device` names; that of the current device for None."""
    if device is None:
        return index()
    if isinstance(device, int):
        return index() if device < 0 else device
    device = torch.device(device)
    if device.type != "jax":
        raise ValueError(f"Expected a jax device, but got: {device}")
    return index() if device.index is None else device.index
