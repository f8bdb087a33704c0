"""The TPU chips that libtpu compiles for: memory, peak rates and bandwidths, each with its source.

Google publishes the figures of its chips. libtpu reserves a part of the memory. The size of the rest, which programs
can use, is not published: it was read from libtpu's error for a program that is too large.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

_T, _G, _GIB = 1e12, 1e9, 2**30
_DOCS = "https://docs.cloud.google.com/tpu/docs"
_BOOK = "https://jax-ml.github.io/scaling-book/tpus/"
_LIBTPU = "libtpu 0.0.51, error E1000 (CompileTimeHbmOom)"


@dataclass(frozen=True)
class Figure:
    """A number with its source.

    Attributes:
        value: in bytes, bytes per second, or operations per second.
        source: the address of the page that states it, or another source.
    """

    value: float
    source: str


# Topologies that can be rented, by the number of dimensions.
_EXAMPLES = {
    2: ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: ("1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "8x8x8"),
}


@dataclass(frozen=True)
class Chip:
    """A TPU chip. Bytes are bytes; rates are per second.

    Attributes:
        name: as in a target ("v5e:2x2").
        kind: JAX's name for a device of this chip.
        topology: the smallest target of more than one chip.
        devices: how many JAX devices it has. They share its memory and rates equally.
        hbm: its memory.
        available: the memory that libtpu leaves to the programs of one device.
        flops: the peak of its matrix units by dtype. None is stated for float32: a product of float32 numbers takes
            several passes of bfloat16.
        bandwidth: of its memory.
        ici: of all links to other chips together, both directions; None if it is not published.
        tile: the size of its matrix unit, which dimensions of products should be multiples of.
        pod: the most chips that are connected with each other.
    """

    name: str
    kind: str
    topology: str
    devices: int
    hbm: Figure
    available: Figure
    flops: Mapping[str, Figure]
    bandwidth: Figure
    ici: Figure | None
    tile: int
    pod: Figure

    @property
    def dimensions(self) -> int:
        """The number of sizes in a topology of this chip."""
        return self.topology.partition(":")[2].count("x") + 1

    @property
    def examples(self) -> list[str]:
        """Targets of this chip: one chip, the smallest with several, and larger ones.

        Example:
            >>> from jaxtorch.capture.tpu_chips import chip_of
            >>> chip_of("v5p:1x1x1").examples
            ['v5p:1x1x1', 'v5p:2x2x1', 'v5p:2x2x2', 'v5p:2x2x4', 'v5p:2x4x4', 'v5p:4x4x4', 'v5p:4x4x8', 'v5p:8x8x8']
        """
        return [f"{self.name}:{shape}" for shape in _EXAMPLES[self.dimensions]]

    def peak(self, dtype: str) -> float:
        """The operations per second of one device for products of a dtype; those of bfloat16 if none are stated.

        Example:
            >>> from jaxtorch.capture.tpu_chips import chip_of
            >>> chip_of("v5e:1x1").peak("int8"), chip_of("tpu7x:1x1x1").peak("float32")
            (393000000000000.0, 1153500000000000.0)
        """
        return self.flops.get(dtype, self.flops["bfloat16"]).value / self.devices


def _chip(
    name: str,
    kind: str,
    topology: str,
    devices: int,
    *,
    page: str,
    hbm: float,
    available: float,
    flops: Mapping[str, float],
    bandwidth: float,
    ici: Figure | float,
    pod: int,
    tile: int = 128,
    more: Mapping[str, Figure] | None = None,
) -> Chip:
    """A chip. Its figures are from one page of Google Cloud, except those that come with another source."""
    source = f"{_DOCS}/{page}"
    return Chip(
        name,
        kind,
        topology,
        devices,
        Figure(hbm * _GIB, source),
        Figure(available * _GIB, _LIBTPU),
        {**{k: Figure(v * _T, source) for k, v in flops.items()}, **(more or {})},
        Figure(bandwidth * _G, source),
        ici if isinstance(ici, Figure) else Figure(ici * _G, source),
        tile,
        Figure(pod, source),
    )


_CHIPS = (
    _chip(
        "v3", "TPU v3", "v3:2x2", 2, page="v3", hbm=32, available=15.48,
        flops={"bfloat16": 123}, bandwidth=900, ici=Figure(4 * 200 * _G, _BOOK), pod=1024,
    ),
    _chip(
        "v4", "TPU v4", "v4:2x2x1", 1, page="v4", hbm=32, available=30.75,
        flops={"bfloat16": 275, "int8": 275}, bandwidth=1200, ici=Figure(6 * 90 * _G, _BOOK), pod=4096,
    ),
    _chip(
        "v5e", "TPU v5 lite", "v5e:2x2", 1, page="v5e", hbm=16, available=15.75,
        flops={"bfloat16": 197, "int8": 393}, bandwidth=819, ici=400, pod=256,
    ),
    _chip(
        "v5p", "TPU v5", "v5p:2x2x1", 1, page="v5p", hbm=95, available=95.73,
        flops={"bfloat16": 459, "float8": 459}, more={"int8": Figure(918 * _T, _BOOK)},
        bandwidth=2765, ici=1200, pod=8960,
    ),
    _chip(
        "v6e", "TPU v6 lite", "v6e:2x2", 1, page="v6e", hbm=32, available=31.24,
        flops={"bfloat16": 918, "int8": 1836}, bandwidth=1638, ici=800, pod=256, tile=256,
    ),
    _chip(
        "tpu7x", "TPU7x", "tpu7x:2x2x1", 2, page="tpu7x", hbm=192, available=94.74,
        flops={"bfloat16": 2307, "float8": 4614}, bandwidth=7380, ici=1200, pod=9216, tile=256,
    ),
)  # fmt: skip

# What Google Cloud and JAX call them elsewhere.
_OTHER_NAMES = {
    "v5lite": "v5e",
    "v5litepod": "v5e",
    "trillium": "v6e",
    "ironwood": "tpu7x",
    "v7": "tpu7x",
    "v7x": "tpu7x",
}


def targets() -> tuple[Chip, ...]:
    """The TPU chips that programs can be compiled for, with their memory, peak rates and bandwidths.

    A target is a chip and its topology: `pure(f).lower(x, target="v5e:2x4")`.

    Example:
        >>> import jaxtorch
        >>> [chip.name for chip in jaxtorch.targets()]
        ['v3', 'v4', 'v5e', 'v5p', 'v6e', 'tpu7x']
        >>> v5e = jaxtorch.targets()[2]
        >>> v5e.hbm.value / 2**30, v5e.bandwidth
        (16.0, Figure(value=819000000000.0, source='https://docs.cloud.google.com/tpu/docs/v5e'))
    """
    return _CHIPS


def chip_of(target: str) -> Chip:
    """The chip of a target.

    Raises:
        LookupError: the chip is unknown.

    Example:
        >>> from jaxtorch.capture.tpu_chips import chip_of
        >>> chip_of("v5e:4x4").kind
        'TPU v5 lite'
    """
    name = target.partition(":")[0]
    for chip in _CHIPS:
        if chip.name == name:
            return chip
    known = [chip.name for chip in _CHIPS]
    lower = name.lower()
    other = _OTHER_NAMES.get(lower)
    near = [other] if other else difflib.get_close_matches(lower, known, 1, 0.1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise LookupError(f"unknown TPU {name!r}. {hint}Known: {', '.join(known)}")
