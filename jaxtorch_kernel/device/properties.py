"""Properties of the JAX device behind `jax:0`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceProperties:
    """Device properties, like those of `torch.cuda.get_device_properties`.

    Attributes:
        name: JAX's `device_kind`.
        platform: "cpu", "gpu" or "tpu".
        index: among JAX's local devices, as for `torch.jax.device`.
        id: JAX's number of the device among those of all processes.
        process_index: the process that it belongs to.
        total_memory: bytes.
        core_count: cores of a TPU chip, multiprocessors of a GPU; 0 if JAX does not report it.
        coords: position in the TPU's torus, otherwise None.
        major, minor: compute capability of a GPU, generation of a TPU.
    """

    name: str
    platform: str
    index: int
    id: int
    process_index: int
    total_memory: int
    core_count: int
    coords: tuple[int, ...] | None
    major: int
    minor: int

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    @property
    def multi_processor_count(self) -> int:
        return self.core_count

    @classmethod
    def of(cls, device: Any, index: int, total_memory: int) -> DeviceProperties:
        """The properties of one `jax.Device`."""
        coords = getattr(device, "coords", None)
        return cls(
            name=str(device.device_kind),
            platform=device.platform,
            index=index,
            id=device.id,
            process_index=device.process_index,
            total_memory=total_memory,
            core_count=int(
                getattr(device, "num_cores", None) or getattr(device, "core_count", None) or 0
            ),
            coords=None if coords is None else tuple(coords),
            **_capability(device),
        )


def _capability(device: Any) -> dict[str, int]:
    stated = getattr(device, "compute_capability", None)
    if stated is not None:
        major, _, minor = str(stated).partition(".")
        return {"major": int(major), "minor": int(minor or 0)}
    generation = re.search(r"TPU v(\d+)|TPU(\d+)", str(device.device_kind))
    number = generation and (generation[1] or generation[2])
    return {"major": int(number or 0), "minor": 0}
