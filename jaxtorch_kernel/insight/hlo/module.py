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
from .shapes import Layout as Layout
from .shapes import Shape as Shape
from .shapes import read_shape
from .wire import fields, numbers

_ALIASING = (
    74  # what a fusion writes in place: the only repeated field that is needed with all its values
)

# Opcodes whose computations are executed instruction by instruction.
RUNS_INSIDE = frozenset(("while", "call", "conditional", "async-start"))


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
    """Instructions in the order in which they run, if XLA has scheduled them; in any case operands before their users.

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
        aliases: for each output that reuses the memory of an input, the number of that input.
    """

    def __init__(
        self,
        name: str,
        number: int,
        entry: int,
        computations: list[Computation],
        frames: list[tuple[Frame, int]],
        inferred: frozenset[int] = frozenset(),
        aliases: Mapping[int, int] | None = None,
    ):
        self.name, self.id, self.inferred = name, number, inferred
        self.aliases = dict(aliases or {})
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
        frames, aliases = self._frames, self.aliases
        return Module(self.name, self.id, entry.id, computations, frames, self.inferred, aliases)

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
    aliases: dict[int, int] = {}
    schedule: dict[int, list[int]] = {}
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
        elif key == 8:
            aliases = _aliases(value)
        elif key == 7:
            schedule = _schedule(value)
    if entry not in {c.id for c in computations}:
        raise ValueError("these bytes are not an XLA module: there is no entry computation")
    computations = [_ordered(c, schedule.get(c.id)) for c in computations]
    return Module(name, number, entry, computations, frames, aliases=aliases)


def _schedule(data: bytes) -> dict[int, list[int]]:
    """The ids of the instructions of each scheduled computation, in the order in which they run."""
    found = {}
    for key, value in fields(data):
        if key == 1:
            entry = dict(fields(value))
            found[entry.get(1, 0)] = [
                n for k, v in fields(entry.get(2, b"")) if k == 1 for n in numbers(v)
            ]
    return found


def _ordered(computation: Computation, order: list[int] | None) -> Computation:
    by_id = {i.id: i for i in computation.instructions}
    if order is None or len(order) != len(by_id) or by_id.keys() != set(order):
        return computation
    return replace(computation, instructions=tuple([by_id[n] for n in order]))


def _aliases(data: bytes) -> dict[int, int]:
    """The inputs whose memory an output reuses, by the number of the output."""
    found = {}
    for key, value in fields(data):
        if key == 1:
            entry = dict(fields(value))
            index = numbers(entry.get(1, b""))
            found[index[0] if index else 0] = entry.get(2, 0)
    return found


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
    if _ALIASING in message:
        message[_ALIASING] = [value for key, value in fields(data) if key == _ALIASING]
    raw = message.pop(3, b"")
    shape = memo.shapes.get(raw)
    if shape is None:
        shape = memo.shapes[raw] = read_shape(raw)
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
