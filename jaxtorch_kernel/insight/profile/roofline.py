"""Peak rates of devices from their data sheets, and the position of each line under the resulting roofline.

Memory bandwidth limits work with few operations per byte moved. So the roof is the minimum of `intensity * bandwidth`
and `flops`. The peaks are for dense matrix products in the widest format that the matrix units run at full speed
(bfloat16). The peak of float32 is lower, so float32 work is closer to its own roof than to the one shown. For other
devices, or for measured peaks, set `jaxtorch.config.update(peak=(operations, bytes))`, both per second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax

from ...base.options import config
from ...capture.tpu_chips import targets

if TYPE_CHECKING:
    from .summary import ProfileRow


@dataclass(frozen=True)
class Peak:
    """A device's roof.

    Attributes:
        flops: bfloat16 operations per second.
        bandwidth: bytes per second between the device and its memory.
    """

    name: str
    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """The intensity, in operations per byte, above which arithmetic is the limit."""
        return self.flops / self.bandwidth

    def roof(self, intensity: float) -> float:
        """The maximum operations per second at an intensity.

        Example:
            >>> Peak("toy", 100.0, 10.0).roof(2.0), Peak("toy", 100.0, 10.0).roof(50.0)
            (20.0, 100.0)
        """
        return min(self.flops, intensity * self.bandwidth)


@dataclass(frozen=True)
class Position:
    """The position of a line under the roof.

    Attributes:
        row: its row in the profile's table of lines.
        intensity: operations per byte moved.
        speed: operations per second.
        roof: the maximum speed at this intensity.
        memory: whether the limit is memory bandwidth rather than arithmetic.
    """

    row: ProfileRow
    intensity: float
    speed: float
    roof: float
    memory: bool

    @property
    def reached(self) -> float:
        """The speed as a share of the roof."""
        return self.speed / self.roof


def positions(lines: Iterable[ProfileRow], peak: Peak) -> list[Position]:
    """The positions of the lines, most time first. Lines without operations or bytes are left out."""
    result = []
    for row in lines:
        time = row.time
        if time.flops > 0 and time.bytes > 0 and time.total > 0:
            intensity = time.flops / time.bytes
            speed = time.flops / (time.total / 1e9)
            roof = peak.roof(intensity)
            result.append(Position(row, intensity, speed, roof, intensity < peak.ridge))
    return sorted(result, key=lambda p: -p.row.time.total)


_T, _G = 1e12, 1e9

# JAX's device kind -> (operations, bytes) per second; dense peaks, without the doubling for sparse matrices.
_PEAKS = {
    **{
        kind: (chip.peak("bfloat16"), chip.bandwidth.value / chip.devices)
        for chip in targets()
        for kind in (chip.kind, f"TPU {chip.name}")  # some versions of JAX use Google's names
    },
    # https://www.nvidia.com/en-us/data-center/a100/
    "NVIDIA A100-SXM4-40GB": (312 * _T, 1555 * _G),
    "NVIDIA A100-PCIE-40GB": (312 * _T, 1555 * _G),
    "NVIDIA A100-SXM4-80GB": (312 * _T, 2039 * _G),
    "NVIDIA A100 80GB PCIe": (312 * _T, 1935 * _G),
    # https://www.nvidia.com/en-us/data-center/h100/ (half of the figure for sparse matrices), /h200/
    "NVIDIA H100 80GB HBM3": (989 * _T, 3350 * _G),
    "NVIDIA H100 PCIe": (756 * _T, 2000 * _G),
    "NVIDIA H100 NVL": (835 * _T, 3900 * _G),
    "NVIDIA H200": (989 * _T, 4800 * _G),
    # https://www.nvidia.com/en-us/data-center/l4/ (half of the figure for sparse matrices)
    "NVIDIA L4": (121 * _T, 300 * _G),
    # https://www.nvidia.com/en-us/data-center/tesla-t4/ (float16: it has no bfloat16)
    "Tesla T4": (65 * _T, 320 * _G),
    # https://www.nvidia.com/en-us/data-center/v100/ (float16)
    "Tesla V100-SXM2-16GB": (125 * _T, 900 * _G),
    "Tesla V100-SXM2-32GB": (125 * _T, 900 * _G),
}


def peak_of(kind: str | None = None) -> Peak | None:
    """The roof of a device kind, by default that of JAX's first device; None if unknown, as for any CPU.

    `jaxtorch.config.peak` takes precedence for that device's kind.
    """
    default = jax.devices()[0].device_kind
    name = default if kind is None else kind
    if name == default and config.peak is not None:
        return Peak(name, *config.peak)
    rates = _PEAKS.get(name)
    return None if rates is None else Peak(name, *rates)
