"""The inputs of a compiled program: the parameters of its HLO, with the names and roles that the capture gave them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ...capture.lowering import Input
from ..hlo.module import Instruction, Module

_POSITION = re.compile(r"arrays\[(\d+)\]")


class Held(NamedTuple):
    """An input of a compiled program.

    Attributes:
        instruction: the parameter of the HLO.
        name, role: as in `Input`.
        donated: whether an output reuses its memory.
    """

    instruction: Instruction
    name: str
    role: str
    donated: bool


def inputs_of(module: Module, inputs: Sequence[Input]) -> list[Held]:
    """The inputs that the compiler kept, in order."""
    by_name = {i.name: i for i in inputs}
    found = []
    for parameter in module.entry.instructions:
        if parameter.opcode != "parameter":
            continue
        number = parameter.fields.get(9, 0)
        label = parameter.op_name
        # The compiling process knows inputs by their position.
        position = _POSITION.fullmatch(label)
        if position and int(position[1]) < len(inputs):
            one = inputs[int(position[1])]
        else:
            one = by_name.get(label, Input(label or parameter.name, "tensor"))
        found.append(Held(parameter, one.name, one.role, number in module.aliases.values()))
    return sorted(found, key=lambda held: held.instruction.fields.get(9, 0))
