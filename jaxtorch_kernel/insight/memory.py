"""The live arrays on the device, their origin and name, and the peak memory of each cell.

JAX lists its live arrays. The Buffer that holds an array (`storage/buffer.py`) records the line that computed it.
Arrays from a backward pass have no line, because its thread has no Python frames. To find the names, a search walks a
namespace through modules, optimizers and containers. `retainers.py` finds what keeps an array without a name alive.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import torch

from ..programs.site import site_of
from ..storage.buffer import LARGE, Buffer, usage
from ..storage.layout import covers_buffer
from ..storage.transfer import has_failed
from .instances import instances, with_subclasses
from .programs import Location, location_of

_DEPTH = 5  # nesting depth of containers that are searched for names
_ITEMS = 2000  # items searched per container


@dataclass(frozen=True)
class LiveArray:
    """A live array on the device.

    Attributes:
        id: unique among live arrays.
        nbytes: total over all devices.
        shape: that of the named tensor if it is the whole array, which may be stored with other dimensions.
        made_by: the operator or function that computed it; "" if unknown.
        location: the line that requested it; None if unknown.
        name: the path from a variable, such as "model.0.weight.grad"; None if the search finds none.
        tensor: whether it belongs to a torch tensor rather than to JAX code.
    """

    id: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    devices: str
    made_by: str
    location: Location | None
    name: str | None
    tensor: bool


@dataclass(frozen=True)
class CellMemory:
    """The bytes that tensors of at least 32 KiB held during one cell.

    Attributes:
        seconds: start time, relative to the first cell.
    """

    cell: int | None
    seconds: float
    before: int
    peak: int
    after: int


_cells: list[CellMemory] = []
_MOST_CELLS = 1000
_NUMBER = re.compile(r"(\d+)")


def live_arrays(namespace: Mapping[str, Any] | None = None) -> list[LiveArray]:
    """All live arrays on the device, the largest first.

    Args:
        namespace: the namespace to search for names.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.memory import live_arrays
        >>> kept = {"batch": [torch.zeros(77, 13, device="jax")]}
        >>> [(a.name, a.nbytes) for a in live_arrays(kept) if a.shape == (77, 13)]
        [('batch[0]', 4004)]
    """
    named = named_arrays(namespace or {})
    # `id` of an array -> its Buffer
    buffers = {id(b.array): b for b in device_buffers() if isinstance(b.array, jax.Array)}
    arrays = []
    for array in jax.live_arrays():
        if array.is_deleted() or (array.nbytes >= LARGE and has_failed(array)):
            continue
        buffer = buffers.get(id(array))
        origin = None if buffer is None else buffer.origin
        name, shape = named.get(id(array), (None, None))
        arrays.append(
            LiveArray(
                id(array),
                array.nbytes,
                tuple(array.shape) if shape is None else shape,
                str(array.dtype),
                ", ".join(sorted(map(str, array.sharding.device_set))),
                "" if origin is None else str(getattr(origin[0], "name", "")),
                None if origin is None else location_of(site_of(origin)),
                name,
                buffer is not None,
            )
        )
    return sorted(arrays, key=lambda a: (-a.nbytes, a.name is None, _natural(a.name or ""), a.id))


def _natural(name: str) -> list[int | str]:
    """The order of names whose numbers count as numbers.

    Example:
        >>> sorted(["z.10.bias", "z.9.weight", "z.9.bias", "a"], key=_natural)
        ['a', 'z.9.bias', 'z.9.weight', 'z.10.bias']
    """
    return [int(part) if i % 2 else part for i, part in enumerate(_NUMBER.split(name))]


def device_buffers() -> list[Buffer]:
    """All buffers of the session that belong to tensors.

    Those that only receive a program's results (`programs/atomic.py`) have no spec. After a failed call they live as
    long as its error does.
    """
    return [b for b in instances(with_subclasses(Buffer)) if b.spec is not None]


# -- names --------------------------------------------------------------------------------------------------------


def named_arrays(namespace: Mapping[str, Any]) -> dict[int, tuple[str, tuple[int, ...] | None]]:
    """`id` of an array -> its path from a variable, and the shape of this tensor if it is the whole array.

    The user's names take precedence over IPython's (`Out[3]`).
    """
    named: dict[int, tuple[str, tuple[int, ...] | None]] = {}
    user_names = [
        name for name in namespace if not name.startswith("_") and name not in ("In", "Out")
    ]
    for name in [*user_names, *(n for n in ("Out", "_", "__", "___") if n in namespace)]:
        for array, path, shape in _walk(name, namespace[name], _DEPTH, set()):
            named.setdefault(id(array), (path, shape))
    return named


def _walk(
    path: str, value: Any, depth: int, visited: set[int]
) -> Iterator[tuple[Any, str, tuple[int, ...] | None]]:
    if isinstance(value, torch.Tensor):
        buffer = getattr(value.untyped_storage(), "buffer", None)
        if buffer is not None:
            whole = covers_buffer(value, buffer.spec)
            yield buffer.array, path, tuple(value.shape) if whole else None
        if value.is_leaf and value.grad is not None:
            yield from _walk(f"{path}.grad", value.grad, depth, visited)
        return
    if type(value).__module__.startswith("jax") and isinstance(value, jax.Array):
        yield value, path, None
        return
    if depth == 0 or id(value) in visited:
        return
    visited.add(id(value))
    for part, inner in _parts(value):
        yield from _walk(path + part, inner, depth - 1, visited)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts of an object, as (suffix to the object's name, value)."""
    if isinstance(value, torch.nn.Module):
        tensors = [*value.named_parameters(), *value.named_buffers()]
        return [(f".{name}", t) for name, t in tensors]
    if isinstance(value, torch.optim.Optimizer):
        states = [s for s in value.state.values() if isinstance(s, dict)]
        return [(f".state[{i}][{k!r}]", t) for i, s in enumerate(states) for k, t in s.items()]
    if isinstance(value, dict):
        return [(f"[{key!r}]", v) for key, v in list(value.items())[:_ITEMS] if _short(key)]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", v) for i, v in enumerate(value[:_ITEMS])]
    if type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
        return [(f".{name}", v) for name, v in vars(value).items()]
    return []


def _short(key: Any) -> bool:
    return isinstance(key, int | float | bool) or (isinstance(key, str) and len(key) < 60)


# -- cells --------------------------------------------------------------------------------------------------------


@contextmanager
def watching(cell: int | None) -> Iterator[None]:
    """Record the peak memory of a block as if it were a cell. Blocks may nest."""
    before = begin()
    try:
        yield
    finally:
        end(before, cell)


def begin() -> tuple[int, int, float]:
    """Start measuring; pass the result to `end`."""
    outer = usage.peak
    usage.before = max(usage.before, outer)
    usage.peak = usage.allocated
    return outer, usage.allocated, time.monotonic()


def end(started: tuple[int, int, float], cell: int | None) -> None:
    """Stop measuring and record the result."""
    outer, before, moment = started
    _cells.append(CellMemory(cell, moment, before, usage.peak, usage.allocated))
    del _cells[:-_MOST_CELLS]
    usage.peak = max(outer, usage.peak)


def cells() -> list[CellMemory]:
    """The memory of the latest thousand cells, the oldest first."""
    if not _cells:
        return []
    first = _cells[0].seconds
    return [CellMemory(c.cell, c.seconds - first, c.before, c.peak, c.after) for c in _cells]
