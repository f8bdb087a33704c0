"""`%jax targets`: the TPU chips that programs can be compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtorch.capture.tpu_chips import Chip, Figure

from .page import Column, Note, Notes, Page, Row, Table, columns
from .units import counted
from .view import PageView


@dataclass(frozen=True)
class ChipRow(Row):
    """A chip with its published figures."""

    name: Annotated[str, Column("chip", "code")]
    topology: Annotated[str, Column("target, such as", "code")]
    hbm: Annotated[float, Column("HBM", "bytes")]
    available: Annotated[
        float, Column("for programs", "bytes", "the memory that libtpu leaves to programs")
    ]
    bfloat16: Annotated[float, Column("bf16 FLOP/s", "amount")]
    int8: Annotated[float | None, Column("int8 OP/s", "amount")]
    float8: Annotated[float | None, Column("fp8 FLOP/s", "amount")]
    bandwidth: Annotated[float, Column("HBM B/s", "amount")]
    ici: Annotated[
        float | None,
        Column("ICI B/s", "amount", "all links to other chips, both directions together"),
    ]
    devices: Annotated[
        int, Column("devices", "count", "JAX devices per chip; they share its memory and rates")
    ]


class TargetsView(PageView):
    """The chips, with the source of each figure.

    Args:
        chips: the chips.
        missing: why programs cannot be compiled for them here; "" if they can.
    """

    def __init__(self, chips: Sequence[Chip], missing: str = ""):
        self.chips, self.missing = chips, missing

    def page(self) -> Page:
        rows = [_row(chip) for chip in self.chips]
        table = Table("chips", columns(ChipRow, rows), rows, name="Chips")
        sources = dict.fromkeys(f.source for chip in self.chips for _, f in _named(chip))
        rounded = [
            f"{chip.name}: the published memory is rounded; libtpu leaves a little more to programs."
            for chip in self.chips
            if chip.available.value * chip.devices > chip.hbm.value
        ]
        notes = Notes(tuple(map(Note, [*sources, *rounded])), "Sources", text_most=1000)
        return Page(
            counted(len(rows), "TPU chip"),
            warnings=(self.missing,) if self.missing else (),
            sections=(table, notes),
        )


def _row(chip: Chip) -> ChipRow:
    peak = {dtype: figure.value for dtype, figure in chip.flops.items()}
    return ChipRow(
        id=chip.name,
        detail=(
            Notes(
                tuple(Note(f"{name}: {figure.source}") for name, figure in _named(chip)),
                text_most=0,
            ),
        ),
        name=chip.name,
        topology=chip.topology,
        hbm=chip.hbm.value,
        available=chip.available.value,
        bfloat16=peak["bfloat16"],
        int8=peak.get("int8"),
        float8=peak.get("float8"),
        bandwidth=chip.bandwidth.value,
        ici=chip.ici.value if chip.ici is not None else None,
        devices=chip.devices,
    )


def _named(chip: Chip) -> list[tuple[str, Figure]]:
    products = [(f"products of {dtype}", figure) for dtype, figure in chip.flops.items()]
    links = [("links to other chips", chip.ici)] if chip.ici is not None else []
    memory = [("memory", chip.hbm), ("memory for programs", chip.available)]
    return [*memory, *products, ("bandwidth of memory", chip.bandwidth), *links]
