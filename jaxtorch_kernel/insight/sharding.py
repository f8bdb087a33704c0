"""The devices behind torch's `jax` device, and the part of an array that each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import torch

from ..device.memory import allocated_by_device
from ..dispatch.read import contiguous_array
from ..storage import placement
from ..storage.buffer import buffer_of
from ..storage.dtypes import to_numpy
from ..storage.layout import is_array


@dataclass(frozen=True)
class DeviceInfo:
    """A JAX device.

    Attributes:
        id: JAX's device id.
        kind: the chip.
        process: the process it belongs to.
        here: whether the device belongs to this process.
        allocated: the bytes of the live arrays on it.
        used, limit: bytes as XLA reports them; None if XLA does not report them (on the CPU).
    """

    id: int
    name: str
    platform: str
    kind: str
    process: int
    here: bool
    allocated: int
    used: int | None
    limit: int | None


@dataclass(frozen=True)
class Drawing:
    """The parts of an array that its devices hold, along the first two sharded axes (the last two if none is sharded).

    Attributes:
        spec: its partition spec, as JAX writes it.
        mesh: name and size of each mesh axis; empty without a mesh.
        axes: the axes drawn as rows and columns; None for a missing axis.
        rows, columns: the index ranges (from, to) along these axes.
        parts: `parts[row][column]` has the ids of the devices that hold this part. A replicated part has several.
        left_out: the sharded axes that are not drawn.
    """

    shape: tuple[int, ...]
    dtype: str
    spec: str
    mesh: tuple[tuple[str, int], ...]
    axes: tuple[int | None, int | None]
    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    left_out: tuple[int, ...]


def devices() -> list[DeviceInfo]:
    """The devices of this session.

    Example:
        >>> from jaxtorch.insight.sharding import devices
        >>> devices()[0].here
        True
    """
    infos = []
    allocated = allocated_by_device()
    for device in placement.devices():
        here = device.process_index == jax.process_index()
        stats = (device.memory_stats() or {}) if here else {}
        infos.append(
            DeviceInfo(
                device.id,
                str(device),
                device.platform,
                device.device_kind,
                device.process_index,
                here,
                allocated[device],
                stats.get("bytes_in_use"),
                stats.get("bytes_limit"),
            )
        )
    return infos


def sharding_of(value: Any) -> Drawing:
    """The sharding of a tensor on the device, or of a `jax.Array`.

    Raises:
        TypeError: the value is neither.
        RuntimeError: it is a view of a tensor of which other processes hold parts.
    """
    if isinstance(value, torch.Tensor):
        if value.device.type != "jax":
            raise TypeError(
                f"the tensor is on {value.device}: only tensors on the jax device have a sharding"
            )
        where = buffer_of(value).spec.placement
        if not placement.on_mesh(where):  # it needs no array: a view has none of its own
            return drawing(where, tuple(value.shape), str(to_numpy(value.dtype)))
        if not is_array(value):  # a program reads it, which every process would have to call
            placement.require_readable(where, f"{value.dtype} of size {list(value.shape)}")
        array = contiguous_array(value)
    else:
        array = value
    if not isinstance(array, jax.Array):
        raise TypeError(
            f"{type(value).__name__} is neither a tensor on the jax device nor a jax.Array"
        )
    return drawing(array.sharding, tuple(array.shape), str(array.dtype))


def drawing(sharding: Any, shape: tuple[int, ...], dtype: str = "float32") -> Drawing:
    """The parts of an array of this shape under a sharding."""
    ranges = {
        device.id: tuple(
            (index.start or 0, size if index.stop is None else index.stop)
            for index, size in zip(indices, shape, strict=True)
        )
        for device, indices in sharding.devices_indices_map(shape).items()
    }
    cut = [axis for axis in range(len(shape)) if len({part[axis] for part in ranges.values()}) > 1]
    drawn = (cut or list(range(len(shape)))[-2:])[:2]
    if len(drawn) == 1 and len(shape) > 1:  # draw an adjacent axis beside the only sharded one
        other = drawn[0] + 1 if drawn[0] == 0 else drawn[0] - 1
        drawn = sorted([drawn[0], other])
    # A vector is drawn as a row.
    row, column = (None, None) if not drawn else (None, drawn[0]) if len(drawn) == 1 else drawn
    rows, columns = _cuts(ranges, row), _cuts(ranges, column)
    devices_of_part: dict[Any, list[int]] = {}
    for device, part in sorted(ranges.items()):
        devices_of_part.setdefault((_along(part, row), _along(part, column)), []).append(device)
    parts = tuple(tuple(tuple(devices_of_part.get((r, c), ())) for c in columns) for r in rows)
    mesh = getattr(sharding, "mesh", None)
    return Drawing(
        shape,
        dtype,
        str(getattr(sharding, "spec", "")) or type(sharding).__name__,
        tuple(mesh.shape.items()) if mesh is not None else (),
        (row, column),
        rows,
        columns,
        parts,
        tuple(axis for axis in cut if axis not in drawn),
    )


def _along(part: tuple[tuple[int, int], ...], axis: int | None) -> tuple[int, int]:
    """The range of a part along an axis."""
    return (0, 1) if axis is None else part[axis]


def _cuts(ranges: dict[int, Any], axis: int | None) -> tuple[tuple[int, int], ...]:
    return tuple(sorted({_along(part, axis) for part in ranges.values()}))
