"""What a device can do at most, by its maker's sheet; and where work stands under that roof.

Work that does few operations for each byte it moves cannot be faster than memory is; the roof is the lower of
`intensity * bandwidth` and `flops`. The figures hold for dense matrix products in the widest format that the matrix
units take at full speed (bfloat16), so that float32 work stands lower than it must.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Peak:
    """A device's roof.

    Attributes:
        flops: bfloat16 operations a second.
        bandwidth: bytes a second between the device and its memory.
    """

    name: str
    flops: float
    bandwidth: float

    @property
    def ridge(self) -> float:
        """Operations per byte from which on the arithmetic is the limit."""
        return self.flops / self.bandwidth

    def roof(self, intensity: float) -> float:
        """The most operations a second at some operations per byte.

        Example:
            >>> Peak("toy", 100.0, 10.0).roof(2.0), Peak("toy", 100.0, 10.0).roof(50.0)
            (20.0, 100.0)
        """
        return min(self.flops, intensity * self.bandwidth)


_T, _G = 1e12, 1e9

# As JAX names the device -> Peak. One core's share where JAX shows a chip as two devices.
_PEAKS = {
    "TPU v4": (275 * _T, 1228 * _G),
    "TPU v5 lite": (197 * _T, 819 * _G),
    "TPU v5p": (459 * _T, 2765 * _G),
    "TPU v5": (459 * _T, 2765 * _G),
    "TPU v6 lite": (918 * _T, 1640 * _G),
    "NVIDIA A100-SXM4-40GB": (312 * _T, 1555 * _G),
    "NVIDIA A100-SXM4-80GB": (312 * _T, 2039 * _G),
    "NVIDIA H100 80GB HBM3": (989 * _T, 3350 * _G),
    "NVIDIA H100 PCIe": (756 * _T, 2000 * _G),
    "NVIDIA H200": (989 * _T, 4800 * _G),
    "NVIDIA L4": (121 * _T, 300 * _G),
    "Tesla T4": (65 * _T, 320 * _G),
    "Tesla V100-SXM2-16GB": (125 * _T, 900 * _G),
}


def peak_of(kind: str | None = None) -> Peak | None:
    """The roof of a kind of device, by default of the first one here; None where it is not known (any CPU)."""
    name = jax.devices()[0].device_kind if kind is None else kind
    found = _PEAKS.get(name)
    return None if found is None else Peak(name, *found)
