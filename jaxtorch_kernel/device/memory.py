"""Memory figures of `torch.jax`, in the terms of `torch.cuda`.

Allocated is what live tensors hold, summed over their buffers. Reserved is what XLA's own
allocator has taken from the device, where the platform tells (GPU and TPU do, the CPU does not).
"""

from __future__ import annotations

import gc
import math
import os
from collections import Counter, OrderedDict
from typing import Any

from ..storage import placement
from ..storage.buffer import LARGE

_UNITS = ("B", "KiB", "MiB", "GiB")


def _jax_device(device: Any = None) -> Any:
    return placement.devices()[placement.index_of(device)]


def _xla_stats(device: Any = None) -> dict[str, int]:
    return _jax_device(device).memory_stats() or {}


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays that live on one device: those behind tensors, and JAX's own.

    As `torch.cuda`'s figure, it is what the allocator has given out, whoever holds it.
    """
    wanted = _jax_device(device)
    return allocated_by_device(wanted.platform)[wanted]


def allocated_by_device(platform: str | None = None) -> Counter[Any]:
    """JAX's device -> `memory_allocated` of it, from one look at all arrays (of a platform)."""
    import jax

    from ..storage.transfer import has_failed  # imports jax too

    found: Counter[Any] = Counter()
    for array in jax.live_arrays(platform):
        if array.is_deleted() or (array.nbytes >= LARGE and has_failed(array)):
            continue
        part = math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)
        for device in array.sharding.device_set:
            found[device] += part
    return found


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes allocated since the start, or since `reset_peak_memory_stats`.

    Where XLA does not tell (the CPU), arrays that are no tensors and tensors below 32 KiB count as they were at that
    reset, and all of JAX's devices here count as one.
    """
    from ..storage.buffer import usage

    return max(max(usage.peak, usage.before) + usage.uncounted, memory_allocated(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` start again from what is held now."""
    from ..storage.buffer import usage

    usage.peak, usage.before = usage.allocated, 0
    usage.uncounted = max(0, memory_allocated(device) - usage.allocated)


def memory_reserved(device: Any = None) -> int:
    """Bytes that XLA's allocator holds on a device, its cache included; what tensors hold where XLA does not say."""
    stats = _xla_stats(device)
    return int(stats.get("pool_bytes") or stats.get("bytes_in_use") or memory_allocated(device))


def max_memory_reserved(device: Any = None) -> int:
    """The largest `memory_reserved` so far."""
    stats = _xla_stats(device)
    peak = stats.get("peak_pool_bytes") or stats.get("peak_bytes_in_use")
    return int(peak or max_memory_allocated(device))


def nested_memory_stats(device: Any = None) -> dict[str, Any]:
    """Allocated and reserved bytes in the nesting of torch's allocators, with XLA's own figures under "xla"."""
    return {
        "allocated_bytes": {
            "all": {"current": memory_allocated(device), "peak": max_memory_allocated(device)}
        },
        "reserved_bytes": {
            "all": {"current": memory_reserved(device), "peak": max_memory_reserved(device)}
        },
        "xla": dict(_xla_stats(device)),
    }


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """The figures by the dotted names of `torch.cuda.memory_stats`.

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

    add("", nested_memory_stats(device))
    return OrderedDict(sorted(flat.items()))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of a device; of the machine where JAX runs on the CPU."""
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


def empty_cache() -> None:
    """Collect Python's garbage, so that unreachable tensors give their memory back. XLA keeps its own pool."""
    gc.collect()


def _readable(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the figures, for printing. `abbreviated` leaves XLA's own figures out."""
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
    lines = [f"Memory of {_jax_device(device)}"]
    lines += [
        f"  {name:<{width}}  {_readable(v) if 'num' not in name else v:>12}" for name, v in rows
    ]
    return "\n".join(lines)
