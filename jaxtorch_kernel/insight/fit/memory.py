"""The memory that a program takes on each device, by kind and by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..programs import Location
from .inputs import Held
from .padding import in_space

Kind = Literal[
    "parameters",
    "optimizer state",
    "gradients",
    "activations",
    "temporaries",
    "inputs",
    "outputs",
    "code",
]
KINDS: dict[str, Kind] = {
    "parameter": "parameters",
    "buffer": "parameters",
    "optimizer state": "optimizer state",
    "hyperparameter": "optimizer state",
    "gradient": "gradients",
    "cotangent": "inputs",
    "argument": "inputs",
    "random key": "inputs",
    "tensor": "inputs",
}


@dataclass(frozen=True)
class KindMemory:
    """The memory of one kind on each device.

    Attributes:
        bytes: with padding.
        padding: how many of them are padding.
        donated: how many of them hold an input first, and an output afterwards.
        returned: how many of them are results that reuse no memory of an input.
    """

    kind: Kind
    bytes: int
    padding: int = 0
    donated: int = 0
    returned: int = 0


@dataclass(frozen=True)
class PeakBuffer:
    """A buffer that exists when most memory is in use.

    Attributes:
        name: of an input, or of the instruction that computes it.
        shape: as XLA writes it.
        bytes: of its elements.
        stored: with padding.
        kind: as in `KindMemory`.
        location: the line that made it; None if unknown, or for an input.
        module: the path of the module that made it, or that it belongs to.
        padded: (size, size as it is stored) of each dimension that is padded.
    """

    name: str
    shape: str
    bytes: int
    stored: int
    kind: Kind
    location: Location | None
    module: str
    padded: tuple[tuple[int, int], ...] = ()

    @property
    def padding(self) -> int:
        """The bytes of its padding."""
        return max(0, self.stored - self.bytes)


@dataclass(frozen=True)
class ModuleMemory:
    """The memory of the inputs that belong to one module of the model, on each device.

    Attributes:
        path: of the module, such as "model.layers.0".
        kinds: the bytes by kind.
    """

    path: str
    kinds: dict[str, int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.kinds.values())


def of_inputs(inputs: Iterable[Held]) -> list[KindMemory]:
    """The memory of a program's inputs by kind."""
    total: Counter[Kind] = Counter()
    elements: Counter[Kind] = Counter()
    donated: Counter[Kind] = Counter()
    for held in inputs:
        kind = KINDS[held.role]
        stored = in_space(held.instruction.shape)
        total[kind] += stored
        elements[kind] += min(stored, held.instruction.shape.bytes)
        donated[kind] += stored if held.donated else 0
    return [KindMemory(k, n, n - elements[k], donated[k]) for k, n in total.items()]


def of_run(
    peak: Sequence[PeakBuffer], results: Iterable[KindMemory], figures: Mapping[str, int]
) -> list[KindMemory]:
    """The memory of everything besides a program's inputs, by kind. The sum of bytes is that of XLA's figures.

    Args:
        peak: the buffers when most memory is in use.
        results: the memory of each result that reuses no memory of an input.
        figures: XLA's.
    """
    returned: Counter[Kind] = Counter()
    padding: Counter[Kind] = Counter()  # of what is returned
    for result in results:
        returned[result.kind] += result.bytes
        padding[result.kind] += result.padding
    outputs = max(0, figures["output_size_in_bytes"] - figures["alias_size_in_bytes"])
    returned["outputs"] = outputs - min(returned["gradients"], outputs)
    left = figures["temp_size_in_bytes"]
    kinds: tuple[Kind, ...] = ("gradients", "activations", "temporaries")
    rows = []
    for kind in kinds:
        buffers = [buffer for buffer in peak if buffer.kind == kind]
        stored = max(0, sum(buffer.stored for buffer in buffers) - returned[kind])
        padded = max(0, sum(buffer.padding for buffer in buffers) - padding[kind])
        held = left if kind == "temporaries" else min(stored, left)
        left -= held
        # XLA may count less than all of these buffers as temporary: one of them may be an output.
        padded = padded * min(held, stored) // max(1, stored) + padding[kind]
        rows.append(KindMemory(kind, held + returned[kind], padded, returned=returned[kind]))
    padded = min(padding["outputs"], returned["outputs"])
    return [
        *rows,
        KindMemory("outputs", returned["outputs"], padded, returned=returned["outputs"]),
        KindMemory("code", figures["generated_code_size_in_bytes"]),
    ]


def by_module(inputs: Iterable[Held]) -> list[ModuleMemory]:
    """The memory of the inputs by the module that they belong to, the largest first."""
    found: dict[str, Counter[str]] = {}
    for held in inputs:
        kind = KINDS[held.role]
        path = held.name.rpartition(".")[0] if held.role in ("parameter", "buffer") else kind
        found.setdefault(path, Counter())[kind] += in_space(held.instruction.shape)
    rows = [ModuleMemory(path, dict(kinds)) for path, kinds in found.items()]
    return sorted(rows, key=lambda row: -row.bytes)
