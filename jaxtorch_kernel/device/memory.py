"""Memory figures of `torch.jax`, in the terms of `torch.cuda`.

Allocated memory is the sum of all live arrays: those of tensors, and those that the program made with JAX. Reserved
memory is what XLA's allocator has taken from the device, if the platform reports it (GPU and TPU do, the CPU does not).
"""

from __future__ import annotations

import gc
import math
import os
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any

from ..storage import pending, placement
from ..storage.buffer import LARGE
from ..storage.placement import Device

_UNITS = ("B", "KiB", "MiB", "GiB")


def _xla_stats(device: Device = None) -> dict[str, int]:
    return placement.jax_device(device).memory_stats() or {}


def memory_allocated(device: Device = None) -> int:
    """Bytes of the live arrays on one device: those of tensors, and those that the program made with JAX.

    As in `torch.cuda`, this counts all memory that the allocator has handed out, regardless of the owner.
    """
    wanted = placement.jax_device(device)
    return allocated_by_device(wanted.platform)[wanted]


def allocated_by_device(platform: str | None = None) -> Counter[Any]:
    """`memory_allocated` of every JAX device (of a platform), from one pass over all arrays."""
    allocated: Counter[Any] = Counter()
    for device, size in _live_parts(platform):
        allocated[device] += size
    return allocated


def _live_parts(platform: str | None = None) -> Iterator[tuple[Any, int]]:
    """The device and the bytes of each part of each live array."""
    import jax

    from ..storage.transfer import has_failed  # imports jax too

    pending.flush()
    for array in jax.live_arrays(platform):
        # Whether an array has failed takes longer to find out than a small one is worth.
        if array.is_deleted() or (array.nbytes >= LARGE and has_failed(array)):
            continue
        size = math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)
        for device in array.sharding.device_set:
            yield device, size


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes allocated since the start, or since `reset_peak_memory_stats`.

    The peak covers tensors from 32 KiB, on all local JAX devices together. Smaller tensors and other arrays count with
    their size at that reset.
    """
    from ..storage.buffer import usage

    return max(max(usage.peak, usage.before) + usage.uncounted, memory_allocated(device))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset `max_memory_allocated` to the memory that is allocated now."""
    from ..storage.buffer import usage

    usage.peak, usage.before = usage.allocated, 0
    usage.uncounted = max(0, memory_allocated(device) - usage.allocated)


def memory_reserved(device: Device = None) -> int:
    """Bytes that XLA's allocator holds on a device, including its cache; allocated bytes if XLA does not report it."""
    stats = _xla_stats(device)
    return int(stats.get("pool_bytes") or stats.get("bytes_in_use") or memory_allocated(device))


def max_memory_reserved(device: Device = None) -> int:
    """The largest `memory_reserved` so far."""
    stats = _xla_stats(device)
    peak = stats.get("peak_pool_bytes") or stats.get("peak_bytes_in_use")
    return int(peak or max_memory_allocated(device))


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """Allocated and reserved bytes, nested as in torch's allocators, with XLA's own figures under "xla"."""
    return {
        "allocated_bytes": {
            "all": {"current": memory_allocated(device), "peak": max_memory_allocated(device)}
        },
        "reserved_bytes": {
            "all": {"current": memory_reserved(device), "peak": max_memory_reserved(device)}
        },
        "xla": dict(_xla_stats(device)),
    }


def memory_stats(device: Device = None) -> OrderedDict[str, int]:
    """The memory figures under the dotted names of `torch.cuda.memory_stats`.

    Example:
        >>> torch.jax.memory_stats()["allocated_bytes.all.current"]  # doctest: +SKIP
        4194304
    """
    flat: dict[str, int] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{prefix}.{name}" if prefix else name, inner)
        else:
            flat[prefix] = value

    add("", memory_stats_as_nested_dict(device))
    return OrderedDict(sorted(flat.items()))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of a device, or of the machine if JAX runs on the CPU."""
    stats = _xla_stats(device)
    if "bytes_limit" in stats:
        total = int(stats["bytes_limit"])
        return total - int(stats.get("bytes_in_use", 0)), total
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable"))
        return int(available.split()[1]) * 1024, total
    except (OSError, StopIteration):
        return page * os.sysconf("SC_AVPHYS_PAGES"), total


def device_memory_used(device: Device = None) -> int:
    """Bytes of a device (of the machine, if JAX runs on the CPU) that are in use, by any program."""
    free, total = mem_get_info(device)
    return total - free


def memory_snapshot(
    mempool_id: object = None, include_traces: bool = True
) -> list[dict[str, object]]:
    """The live arrays of all local devices, in the format of `torch.cuda.memory_snapshot`.

    XLA does not report its segments, so each array's part on a device is listed as a segment of one block. `%jax
    memory` shows the lines that created the arrays.

    Args:
        mempool_id: accepted for compatibility; there is one pool.
        include_traces: accepted for compatibility; there are no traces.
    """
    index_of = {device: i for i, device in enumerate(placement.devices())}
    segments: list[dict[str, object]] = []
    for device, size in _live_parts(placement.jax_device().platform):
        if device in index_of:
            sizes = {"total_size": size, "allocated_size": size, "active_size": size}
            block = {
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": [],
            }
            at = {"device": index_of[device], "segment_type": "large"}
            segments.append({**at, **sizes, "blocks": [block]})
    return segments


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Does nothing: no figure here adds up over time. `reset_peak_memory_stats` resets the peak."""


def reset_max_memory_allocated(device: Device = None) -> None:
    """Same as `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def ipc_collect() -> None:
    """Does nothing: other processes get copies of tensors."""


def empty_cache() -> None:
    """Run Python's garbage collector, so that unreachable tensors release their memory. XLA keeps its own pool."""
    gc.collect()


def _readable(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A printable table of the memory figures. `abbreviated` omits XLA's own figures."""
    free, total = mem_get_info(device)
    rows = [
        ("held by tensors", memory_allocated(device)),
        ("held by tensors, peak", max_memory_allocated(device)),
        ("reserved by XLA", memory_reserved(device)),
        ("free", free),
        ("total", total),
    ]
    if not abbreviated:
        rows += [(f"XLA: {k}", v) for k, v in sorted(_xla_stats(device).items()) if v is not None]
    width = max(len(name) for name, _ in rows)
    lines = [f"Memory of {placement.jax_device(device)}"]
    lines += [
        f"  {name:<{width}}  {_readable(v) if 'num' not in name else v:>12}" for name, v in rows
    ]
    return "\n".join(lines)
