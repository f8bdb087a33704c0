"""Placement of arrays: which JAX devices hold them, and where an operator runs.

torch sees one device, `jax:0`. Which JAX devices hold an array is its sharding, which is part of the buffer's Spec. So
a program compiled for one chip is never called with the arrays of another. New arrays are put on one device, which
`torch.jax.device(i)` chooses for a thread.

An operator with an input on several devices runs on all devices of that mesh. Inputs on one device are copied to each
of them. XLA chooses the sharding of the results; what the operator writes keeps its sharding.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

Device = int | str | torch.device | None  # what `torch.cuda`'s functions take, too

if TYPE_CHECKING:  # `torch.manual_seed` imports this module, and must not import jax
    import jax
    import numpy as np
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
    check_exists(i)
    return _index.set(i)


def check_exists(i: int) -> None:
    """Refuse the index of a device that JAX does not have.

    Raises:
        RuntimeError: the device does not exist.
    """
    count = len(devices())
    if not 0 <= i < count:
        raise RuntimeError(
            f"invalid jax device index {i}: JAX has {count} local device(s) here, "
            f"so torch.jax.device takes 0 to {count - 1}."
        )


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
    """Whether an array with this sharding is on more than one device."""
    return len(sharding.device_set) > 1


any_mesh = False  # whether any array of this process has ever been on a mesh


def note_sharding(sharding: Sharding) -> None:
    """Note the sharding of an array."""
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
    return mesh if mesh.axis_types == types else mesh.update(axis_types=types)


class _Hidden(threading.local):
    """The context mesh that `without_context_mesh` hides in a thread."""

    mesh: AnyMesh | None = None


_hidden = _Hidden()


def context_mesh() -> AnyMesh | None:
    """The mesh of the user's `jax.set_mesh` or `with mesh:`, for constraints without a mesh; None if there is none."""
    from ..base import jax_meshes

    return _hidden.mesh or jax_meshes.context_mesh()


@contextmanager
def without_context_mesh() -> Iterator[None]:
    """Hide the user's context mesh from JAX in the block.

    Our programs are traced and compiled in such a block: they run where their inputs lie. JAX would compile each for
    the context mesh, and for the types of its axes.
    """
    from ..base import jax_meshes

    mesh = jax_meshes.context_mesh()
    if mesh is None:
        yield
        return
    before, _hidden.mesh = _hidden.mesh, mesh
    try:
        with jax_meshes.in_context(None):
            yield
    finally:
        _hidden.mesh = before


@contextmanager
def for_user_code() -> Iterator[None]:
    """Show the user's context mesh to JAX code of the user in a block of `without_context_mesh`.

    Its axes have the type Auto, as those of our arrays.
    """
    from ..base import jax_meshes

    mesh = context_mesh()
    if mesh is None:
        yield
        return
    with jax_meshes.in_context(_auto(mesh)):
        yield


def copied(array: jax.Array) -> jax.Array:
    """A copy of an array in row-major order, with the same sharding. On one device it needs no program."""
    if _is_one_device(array) and _is_row_major(array):
        return all_copied([array])[0]
    with without_context_mesh():
        return array.copy()


def all_copied(arrays: list[jax.Array]) -> list[jax.Array]:
    """Copies of arrays with values, each on one device, made by XLA's runtime without a program."""
    import jax

    with jax.ensure_compile_time_eval():  # a trace may be open
        copies: list[jax.Array] = jax.device_put(
            arrays, [array.sharding for array in arrays], may_alias=False
        )
    return copies


def is_on_host(sharding: Sharding) -> bool:
    """Whether arrays are in the memory of this process, so that reading them copies nothing."""
    platforms = [device.platform for device in sharding.device_set]  # type: ignore[attr-defined]  # not in JAX's stubs
    return set(platforms) == {"cpu"}


def _is_one_device(array: jax.Array) -> bool:
    """Whether an array has values, all on one device."""
    import jax

    if isinstance(array, jax.core.Tracer):
        return False
    return isinstance(array.sharding, jax.sharding.SingleDeviceSharding)


def _is_row_major(array: jax.Array) -> bool:
    layout = array.format.layout  # type: ignore[attr-defined]  # not in JAX's stubs
    return layout is not None and layout.major_to_minor == tuple(range(array.ndim))


def another(array: jax.Array) -> jax.Array:
    """Another array object over the same memory, where arrays are distinguished by identity."""
    import jax

    parts = [shard.data for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


def common(shardings: Iterable[Sharding], operator: str) -> Sharding | None:
    """The sharding on which an operator runs: on the mesh of its inputs if any is on one, else that of the first.

    Raises:
        RuntimeError: the inputs are on two meshes.
    """
    first = mesh = None
    for sharding in shardings:
        first = first or sharding
        if not on_mesh(sharding):
            continue
        if mesh is not None and sharding._device_assignment != mesh._device_assignment:
            raise RuntimeError(
                f"{operator}: the inputs are on two meshes, {_devices(mesh)} and {_devices(sharding)}. "
                "Move one of them: jaxtorch.shard(x, spec, mesh)."
            )
        mesh = mesh or sharding
    return None if first is None else replicated(mesh or first)


def _devices(sharding: Sharding) -> str:
    devices: Iterable[jax.Device] = sharding._device_assignment
    numbers = ", ".join(str(device.id) for device in devices)
    mesh = getattr(sharding, "mesh", None)
    shape = f"{dict(mesh.shape)} of " if mesh is not None else ""
    return f"{shape}devices {numbers}"


def moved(array: jax.Array | np.ndarray, sharding: Sharding) -> jax.Array:
    """An array on another sharding.

    If the sharding spans several processes and the array is in this one alone, each process takes its part of its own
    copy: the copies are equal, because every process runs the same program. In the other direction, each process takes
    its full copy of an array that is replicated over several.

    Raises:
        RuntimeError: the sharding is in this process, and other processes hold parts of the array.
    """
    import jax

    from . import in_flight  # which imports jax

    if on_mesh(sharding):  # from one mesh to another it is a program
        in_flight.before_launch(sharding)
    elsewhere = isinstance(array, jax.Array) and not array.is_fully_addressable
    if isinstance(array, jax.Array) and elsewhere and sharding.is_fully_addressable:
        require_readable(array.sharding, f"{array.dtype.name}{list(array.shape)}")
        return jax.device_put(array.addressable_data(0), sharding)
    if sharding.is_fully_addressable or elsewhere:
        return jax.device_put(array, sharding)
    with jax.enable_x64(True):
        parts = [
            jax.device_put(array if sharding.is_fully_replicated else array[index], device)
            for device, index in sharding.addressable_devices_indices_map(array.shape).items()
        ]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)


def is_readable(sharding: Sharding) -> bool:
    """Whether this process alone can read an array: its devices hold all of it, or a full copy."""
    return sharding.is_fully_addressable or sharding.is_fully_replicated


def require_readable(sharding: Sharding, what: str) -> None:
    """Refuse to read an array in this process if others hold parts of it.

    Reading it would be a program that every process has to call; if one alone did, it would wait forever.

    Raises:
        RuntimeError: other processes hold parts of it; `what` describes the array.
    """
    if is_readable(sharding):
        return
    devices: set[jax.Device] = sharding.device_set
    processes = {device.process_index for device in devices}
    spec = getattr(sharding, "spec", sharding)
    raise RuntimeError(
        f"this tensor ({what}, sharded as {spec}) spans {len(processes)} processes, and each can read only its own "
        "part: call jaxtorch.gather(x) in every process for a full copy on the CPU."
    )


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


def jax_device(device: Device = None) -> jax.Device:
    """The device of JAX that `device` names.

    Raises:
        RuntimeError: it does not exist.
    """
    i = index_of(device)
    check_exists(i)
    return devices()[i]
