"""An XLA module as data, read from its serialized form.

A module has computations; a computation has instructions, ordered so that operands come before their users. Fusions,
loops, branches and reductions call other computations. The metadata of an instruction holds its origin: `op_name`, the
named scopes it was traced under, and the id of a stack frame. The module has a table of frames, each with its calling
frame.

XLA's text form prints the ids of the calling frames off by one. So everything is read from the serialized form. The
text is only displayed, and `Listing` finds the instruction of a line by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ...base.naming import new_names
from .wire import fields, numbers, signed

# xla_data.proto: PrimitiveType -> name, bits of an element.
_TYPES = {
    1: ("pred", 8), 30: ("s1", 1), 26: ("s2", 2), 21: ("s4", 4), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32),
    5: ("s64", 64), 31: ("u1", 1), 27: ("u2", 2), 22: ("u4", 4), 6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32),
    9: ("u64", 64), 10: ("f16", 16), 11: ("f32", 32), 16: ("bf16", 16), 12: ("f64", 64), 19: ("f8e5m2", 8),
    28: ("f8e4m3", 8), 20: ("f8e4m3fn", 8), 23: ("f8e4m3b11fnuz", 8), 29: ("f8e3m4", 8), 24: ("f8e5m2fnuz", 8),
    25: ("f8e4m3fnuz", 8), 32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8), 15: ("c64", 64), 18: ("c128", 128),
    14: ("opaque", 0), 17: ("token", 0),
}  # fmt: skip
_TUPLE, _BUFFER = 13, 34

# Opcodes whose computations are executed instruction by instruction.
RUNS_INSIDE = frozenset(("while", "call", "conditional", "async-start"))


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a result: an array, or a tuple of shapes.

    Attributes:
        text: as XLA writes it, without the layout.
        dtype: the element type of an array; "tuple" for a tuple.
        dimensions: the sizes of an array; empty for a tuple.
        parts: the shapes in a tuple; empty for an array.
        bytes: the total, without padding.
    """

    text: str
    dtype: str
    dimensions: tuple[int, ...]
    parts: tuple[Shape, ...]
    bytes: int

    @property
    def elements(self) -> int:
        """The number of elements, over all parts."""
        if self.parts:
            return sum(part.elements for part in self.parts)
        count = 1
        for size in self.dimensions:
            count *= size
        return count


class Frame(NamedTuple):
    """A line of Python that was on the stack when an instruction was traced."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        operands: ids of instructions of the same computation.
        calls: ids of the computations that it runs.
        computation: the id of the computation that contains it.
        op_name: the named scopes it was traced under, with the primitive's name last.
        frame: the id of its stack frame in the module's table; 0 if unknown.
        fields: the other serialized fields, by their numbers in `hlo.proto`.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    calls: tuple[int, ...]
    computation: int
    op_name: str
    frame: int
    fields: Mapping[int, Any] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions, operands before their users.

    Attributes:
        fused: whether it is the body of a fusion. Its values then stay in registers.
    """

    id: int
    name: str
    instructions: tuple[Instruction, ...]
    root: int
    fused: bool


class Module:
    """A whole program. Created by `read_module`.

    Attributes:
        name: the program's name.
        id: XLA's module id, which identifies it in a profile.
        entry: the entry computation.
        computations: by id, callees before their callers.
        inferred: ids of the instructions whose origin is a guess (`inferred.py`).
    """

    def __init__(
        self,
        name: str,
        number: int,
        entry: int,
        computations: list[Computation],
        frames: list[tuple[Frame, int]],
        inferred: frozenset[int] = frozenset(),
    ):
        self.name, self.id, self.inferred = name, number, inferred
        self.computations = {c.id: c for c in computations}
        self.entry = self.computations[entry]
        self._frames = frames
        self._stacks: dict[int, tuple[Frame, ...]] = {0: ()}

    @cached_property
    def instructions(self) -> dict[int, Instruction]:
        """Every instruction, by id."""
        return {i.id: i for c in self.computations.values() for i in c.instructions}

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Instruction id -> the ids of the instructions that read its result."""
        users: dict[int, list[int]] = {}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction.id)
        return users

    @cached_property
    def callers(self) -> dict[int, list[int]]:
        """Computation id -> the ids of the instructions that run it."""
        callers: dict[int, list[int]] = {}
        for instruction in self.instructions.values():
            for called in dict.fromkeys(instruction.calls):
                callers.setdefault(called, []).append(instruction.id)
        return callers

    def with_input_names(self) -> Module:
        """The module with the names that its text shows for the program's inputs (`base/naming.py`)."""
        parameters = [i for i in self.entry.instructions if i.opcode == "parameter"]
        names = new_names(
            [(i.name, i.op_name) for i in parameters],
            {i.name for i in self.instructions.values()},
        )
        renamed = (replace(i, name=names.get(i.name, i.name)) for i in self.entry.instructions)
        entry = replace(self.entry, instructions=tuple(renamed))
        computations = [entry if c is self.entry else c for c in self.computations.values()]
        return Module(self.name, self.id, entry.id, computations, self._frames, self.inferred)

    def named(self, name: str) -> Instruction:
        """The instruction with this name; a leading `%` is ignored.

        Raises:
            LookupError: no instruction has this name.
        """
        instruction = self.find(name)
        if instruction is None:
            raise LookupError(f"{self.name} has no instruction {name!r}")
        return instruction

    def find(self, name: str) -> Instruction | None:
        """Like `named`, but returns None if no instruction has this name."""
        return self._names.get(name.removeprefix("%"))

    @cached_property
    def _names(self) -> dict[str, Instruction]:
        return {i.name: i for i in self.instructions.values()}

    def stack(self, frame: int) -> tuple[Frame, ...]:
        """The Python stack of a frame, the innermost line first."""
        stack = self._stacks.get(frame)
        if stack is None:
            innermost, parent = self._frames[frame - 1]
            stack = self._stacks[frame] = (innermost, *self.stack(parent))
        return stack

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions inside a fusion, loop or call, at any depth; callers before callees."""
        for called in instruction.calls:
            for inner in self.computations[called].instructions:
                yield inner
                if inner.calls:
                    yield from self.inside(inner)


def read_module(data: bytes) -> Module:
    """Read a serialized `HloModuleProto`.

    Raises:
        ValueError: the bytes are not a module.

    Example:
        >>> import jax
        >>> from jaxtorch.insight.hlo.module import read_module
        >>> compiled = jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((4, 4), "float32")).compile()
        >>> module = read_module(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
        >>> [i.shape.text for i in module.instructions.values() if i.opcode == "dot"]
        ['f32[4,4]']
    """
    name, number, entry = "", 0, 0  # the serialized form leaves out numbers that are 0
    memo = _Memo({}, {})
    computations: list[Computation] = []
    frames: list[tuple[Frame, int]] = []
    for key, value in fields(data):
        if key == 1:
            name = value.decode()
        elif key == 5:
            number = value
        elif key == 6:
            entry = value
        elif key == 3:
            computations.append(_computation(value, memo))
        elif key == 17:
            frames = _frames(value)
    if entry not in {c.id for c in computations}:
        raise ValueError("these bytes are not an XLA module: there is no entry computation")
    return Module(name, number, entry, computations, frames)


class _Memo(NamedTuple):
    """Caches of values shared by many instructions; this halves the reading time."""

    shapes: dict[bytes, Shape]
    origins: dict[bytes, tuple[str, int]]  # metadata -> its name and frame


def _computation(data: bytes, memo: _Memo) -> Computation:
    raw: list[bytes] = []
    other: dict[int, Any] = {}
    for key, value in fields(data):
        if key == 2:
            raw.append(value)
        else:
            other[key] = value
    number = other.get(5, 0)
    instructions = tuple([_instruction(each, number, memo) for each in raw])
    return Computation(
        number, other.get(1, b"").decode(), instructions, other.get(6, 0), bool(other.get(7))
    )


def _instruction(data: bytes, computation: int, memo: _Memo) -> Instruction:
    message = dict(fields(data))
    raw = message.pop(3, b"")
    shape = memo.shapes.get(raw)
    if shape is None:
        shape = memo.shapes[raw] = _shape(raw)
    raw = message.pop(7, b"")
    origin = memo.origins.get(raw)
    if origin is None:
        metadata = dict(fields(raw))
        origin = metadata.get(2, b"").decode(errors="replace"), metadata.get(15, 0)
        memo.origins[raw] = origin
    operands, calls = message.pop(36, None), message.pop(38, None)
    return Instruction(
        message.pop(35, 0),
        message.pop(1, b"").decode(),
        message.pop(2, b"").decode(),
        shape,
        () if operands is None else tuple(numbers(operands)),
        () if calls is None else tuple(numbers(calls)),
        computation,
        *origin,
        message,
    )


def _shape(data: bytes) -> Shape:
    kind = 0
    dimensions: list[int] = []
    parts: list[Shape] = []
    for key, value in fields(data):
        if key == 2:
            kind = value
        elif key == 3:
            dimensions += [signed(n) for n in numbers(value)]
        elif key == 4:
            parts.append(_shape(value))
    if kind == _BUFFER and parts:
        return parts[0]
    if kind == _TUPLE:
        text = f"({', '.join(part.text for part in parts)})"
        return Shape(text, "tuple", (), tuple(parts), sum(part.bytes for part in parts))
    dtype, bits = _TYPES.get(kind, (f"type{kind}", 0))
    count = 1
    for size in dimensions:
        count *= size
    text = f"{dtype}[{','.join(map(str, dimensions))}]"
    return Shape(text, dtype, tuple(dimensions), (), -(-count * bits // 8))


def _frames(data: bytes) -> list[tuple[Frame, int]]:
    """The table of frames, each with the id of its calling frame (0 if it has none)."""
    files: list[str] = []
    functions: list[str] = []
    locations: list[Frame] = []
    frames: list[tuple[Frame, int]] = []
    for key, value in fields(data):
        if key == 1:
            files.append(value.decode(errors="replace"))
        elif key == 2:
            functions.append(value.decode(errors="replace"))
        elif key == 3:
            message = dict(fields(value))
            file, function = message.get(1, 0), message.get(2, 0)
            locations.append(
                Frame(
                    files[file - 1] if file else "",
                    message.get(3, 0),
                    functions[function - 1] if function else "",
                )
            )
        elif key == 4:
            message = dict(fields(value))
            location = message.get(1, 0)
            frames.append(
                (locations[location - 1] if location else Frame("", 0, ""), message.get(2, 0))
            )
    return frames
