"""The buffers that exist when most memory is in use: their kinds, and the lines and modules that made them.

A compiled program does not record the role of a value in training. It is inferred from the place where the value was
made: in the forward pass (activations), or in the backward pass with the sizes of a parameter (gradients). All other
values are temporaries.
"""

from __future__ import annotations

from collections.abc import Collection

from ..hlo.module import Instruction, Module, Shape
from ..hlo.scopes import scope_of
from ..hlo.source import Sources
from .inputs import Held
from .liveness import Liveness, Value
from .memory import KINDS, Kind, KindMemory, PeakBuffer
from .padding import in_space, padded_dimensions

_COPIES = frozenset(("copy", "copy-start", "copy-done", "bitcast", "get-tuple-element", "convert"))
_OPTIMIZER = "Optimizer."


class Peak:
    """The peak of a module.

    Args:
        module: the module.
        inputs: its inputs.

    Attributes:
        buffers: all of them, the largest first.
    """

    def __init__(self, module: Module, inputs: Collection[Held], sources: Sources):
        self.module, self._sources = module, sources
        self._sizes = {
            held.instruction.shape.dimensions for held in inputs if held.role == "parameter"
        }
        self._trains = any(scope_of(i.op_name).backward for i in module.instructions.values())
        values = Liveness(module, in_space, of_outputs=True).peak.values
        found = [*map(self._input, inputs), *map(self._value, values)]
        self.buffers = sorted(found, key=lambda buffer: -buffer.stored)

    def of_outputs(self) -> list[KindMemory]:
        """The memory of each result that reuses no memory of an input.

        Results with the sizes of a parameter count as gradients: new parameters reuse the memory of the old ones.
        """
        root = self.module.instructions[self.module.entry.root]
        results = [root]
        if root.opcode == "tuple":
            results = [self.module.instructions[o] for o in root.operands]
        found: list[KindMemory] = []
        for number, result in enumerate(results):
            if number not in self.module.aliases:
                is_gradient = self._trains and result.shape.dimensions in self._sizes
                stored = in_space(result.shape)
                padding = max(0, stored - result.shape.bytes)
                found.append(KindMemory("gradients" if is_gradient else "outputs", stored, padding))
        return found

    def _input(self, held: Held) -> PeakBuffer:
        shape = held.instruction.shape
        owner = held.name.rpartition(".")[0]
        kind = KINDS[held.role]
        stored, padded = in_space(shape), padded_dimensions(shape)
        return PeakBuffer(held.name, shape.text, shape.bytes, stored, kind, None, owner, padded)

    def _value(self, value: Value) -> PeakBuffer:
        made = self._maker(value.instruction)
        return PeakBuffer(
            made.name,
            value.shape.text,
            value.shape.bytes,
            value.bytes,
            self._kind(made, value.shape),
            self._sources.of(made),
            ".".join(scope_of(made.op_name).path),
            padded_dimensions(value.shape),
        )

    def _maker(self, instruction: Instruction) -> Instruction:
        """The instruction that computed what another one copies."""
        while instruction.opcode in _COPIES and instruction.operands:
            source = self.module.instructions[instruction.operands[0]]
            if source.opcode in ("parameter", "constant", "tuple"):
                break
            instruction = source
        return instruction

    def _kind(self, instruction: Instruction, shape: Shape) -> Kind:
        scope = scope_of(self._maker(instruction).op_name)
        if not scope.primitive or any(part.startswith(_OPTIMIZER) for part in scope.path):
            return "temporaries"
        if not scope.backward:
            return "activations"
        return "gradients" if shape.dimensions in self._sizes else "temporaries"
