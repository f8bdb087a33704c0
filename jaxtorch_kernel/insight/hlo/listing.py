"""The three representations of a program, each line with the lines of user code that it comes from.

* jaxpr: JAX's printer reports the traceback of each printed line.
* StableHLO: each operation ends with the name of a location, and the text ends with a table of locations. The listing
  leaves out both.
* optimized HLO: the name at the start of a line identifies the instruction. The listing leaves out the frame tables at
  the head of the text, because the links replace them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..programs import Location
from .module import Module
from .source import Sources, location_of_stack

STAGES = ("jaxpr", "stablehlo", "hlo")


@dataclass(frozen=True)
class Listing:
    """One representation of a program, as text.

    Attributes:
        stage: one of `STAGES`.
        lines: the text.
        locations: for each line, the lines of user code that it comes from. The line of a fusion precedes those of the
            instructions inside it.
        instructions: for each line of optimized HLO, the id of its instruction, or None; empty for other stages.
    """

    stage: str
    lines: tuple[str, ...]
    locations: tuple[tuple[Location, ...], ...]
    instructions: tuple[int | None, ...] = ()

    @property
    def text(self) -> str:
        """All lines as one string."""
        return "\n".join(self.lines)

    @cached_property
    def all_locations(self) -> list[Location]:
        """Every line of user code that the program comes from, without duplicates."""
        return list(
            dict.fromkeys(p for locations in dict.fromkeys(self.locations) for p in locations)
        )

    def at(self, location: Location) -> list[int]:
        """The zero-based numbers of the lines that come from a line of user code."""
        wanted = location.file, location.line
        return [
            i
            for i, locations in enumerate(self.locations)
            if any((p.file, p.line) == wanted for p in locations)
        ]

    def grep(self, text: str) -> list[int]:
        """The zero-based numbers of the lines that contain a text, ignoring case."""
        text = text.lower()
        return [i for i, line in enumerate(self.lines) if text in line.lower()]


def list_jaxpr(jaxpr: Any) -> Listing:
    """A `ClosedJaxpr` as JAX prints it."""
    spans: list[list[tuple[int, int, Any]]] = []
    text = jaxpr.pretty_print(source_map=spans, use_color=False)
    cache: dict[int, tuple[Location, ...]] = {}

    def locations(tracebacks: Sequence[tuple[int, int, Any]]) -> tuple[Location, ...]:
        if not tracebacks:
            return ()
        traceback = tracebacks[0][2]
        if id(traceback) not in cache:
            frames = ((f.file_name, f.line_num, f.function_name) for f in traceback.frames)
            location = location_of_stack(frames)
            cache[id(traceback)] = () if location is None else (location,)
        return cache[id(traceback)]

    lines = tuple(text.splitlines())
    return Listing(
        "jaxpr", lines, tuple(_inherit_locations(lines, [locations(line) for line in spans]))
    )


def _inherit_locations(
    lines: Sequence[str], locations: Sequence[tuple[Location, ...]]
) -> list[tuple[Location, ...]]:
    """The places of a jaxpr's lines. A line inside an equation (a `custom_jvp_call`) inherits the equation's place."""
    inherited: list[tuple[Location, ...]] = []
    enclosing: list[tuple[int, tuple[Location, ...]]] = []
    for line, line_locations in zip(lines, locations, strict=True):
        indent = len(line) - len(line.lstrip())
        while enclosing and enclosing[-1][0] >= indent:
            enclosing.pop()
        line_locations = line_locations or (enclosing[-1][1] if enclosing else ())
        inherited.append(line_locations)
        if line_locations:
            enclosing.append((indent, line_locations))
    return inherited


# `#loc7 = loc(callsite(#loc5 at #loc6))`, `loc("a.py":3:8 to :13)`, `loc("name"(#loc3))`; an operation ends in
# `loc(...)`.
_TABLE = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_AT_END = re.compile(r" loc\((#loc\d*|unknown|\"(?:[^\"\\]|\\.)*\"(?:\(#loc\d*\))?)\)(?=[,)\s]|$)")
_FILE = re.compile(r"^\"((?:[^\"\\]|\\.)*)\":(\d+):\d+")
_NAMED = re.compile(r"^\"((?:[^\"\\]|\\.)*)\"(?:\(|$)")
_REFERENCE = re.compile(r"#loc\d*(?!\w)")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_ESCAPED = re.compile(r"\\(?:([0-9A-Fa-f]{2})|(.))")


def list_stablehlo(text: str) -> Listing:
    """StableHLO as `Lowered.as_text(debug_info=True)` gives it. Text without locations has no links."""
    source, table = Locations.of_text(text)
    lines: list[str] = []
    locations: list[tuple[Location, ...]] = []
    # Indent -> the last operation at this indent that opened regions. Its location is printed after the regions.
    opens: dict[int, int] = {}
    for line in source:
        location = table.location(line)
        lines.append(_AT_END.sub("", line))
        locations.append((location,) if location is not None else ())
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("}"):
            if (opened := opens.get(indent)) is not None and not locations[opened]:
                locations[opened] = locations[-1]
        elif not _AT_END.search(line) and line.lstrip().startswith("%"):
            opens[indent] = len(lines) - 1
    return Listing("stablehlo", tuple(lines), tuple(locations))


_Stack = tuple[tuple[str, int, str], ...]


class Locations:
    """The table of locations. A location is a named scope, a line of a file, or the pair of a callee and its caller."""

    def __init__(self, table: dict[str, str]):
        self._table = table
        self._stacks: dict[str, _Stack] = {}
        self._locations: dict[str, Location | None] = {}

    @classmethod
    def of_text(cls, text: str) -> tuple[list[str], Locations]:
        """The lines of a text without its location table, and the table."""
        table: dict[str, str] = {}
        lines: list[str] = []
        for line in text.splitlines():
            match = _TABLE.match(line)
            if match:
                table[match[1]] = match[2]
            else:
                lines.append(line)
        return lines, cls(table)

    def location(self, line: str) -> Location | None:
        """The line of user code that a line of text comes from."""
        name = self._name(line)
        if name not in self._locations:
            self._locations[name] = location_of_stack(self._stack(name))
        return self._locations[name]

    def origin(self, line: str) -> tuple[str, _Stack]:
        """The scopes that a line of text was traced under, and its Python stack, the innermost first."""
        name = self._name(line)
        scopes = _NAMED.match(self._table.get(name, name))
        return _unescaped(scopes[1]) if scopes else "", self._stack(name)

    @staticmethod
    def _name(line: str) -> str:
        names = _AT_END.findall(line)
        return names[-1] if names and line.rstrip().endswith(")") else ""

    def _stack(self, name: str) -> _Stack:
        """The frames of a location; for `callsite(a at b)`, those of a, then those of b."""
        stack = self._stacks.get(name)
        if stack is None:
            content = self._table.get(name, name if name.startswith('"') else "")
            file = _FILE.match(content)
            if file:
                stack = ((_unescaped(file[1]), int(file[2]), ""),)
            else:
                inner = _REFERENCE.findall(_STRING.sub("", content))
                stack = tuple(frame for each in inner for frame in self._stack(each))
            self._stacks[name] = stack
        return stack


def _unescaped(text: str) -> str:
    r"""The value of an MLIR string, which escapes a byte as two hex digits.

    Example:
        >>> _unescaped(r"a\22b\\c")
        'a"b\\c'
    """
    if "\\" not in text:
        return text
    raw = b""
    at = 0
    for match in _ESCAPED.finditer(text):
        raw += text[at : match.start()].encode()
        raw += bytes([int(match[1], 16)]) if match[1] else match[2].encode()
        at = match.end()
    return (raw + text[at:].encode()).decode(errors="replace")


_TABLES = re.compile(
    r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*\n*", re.MULTILINE
)
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([^\s=]+) = ")
_FRAME = re.compile(r" ?stack_frame_id=\d+(?=\})")


def list_hlo(module: Module, sources: Sources, text: str) -> Listing:
    """Optimized HLO as XLA prints it, without its frame tables."""
    lines: list[str] = []
    locations: list[tuple[Location, ...]] = []
    instructions: list[int | None] = []
    for line in _TABLES.sub("", text).rstrip().splitlines():
        match = _INSTRUCTION.match(line)
        instruction = module.find(match[1]) if match else None
        if "stack_frame_id=" in line:
            line = _FRAME.sub("", line).replace(", metadata={}", "")
        lines.append(line)
        instructions.append(None if instruction is None else instruction.id)
        locations.append(() if instruction is None else sources.spanned(instruction))
    return Listing("hlo", tuple(lines), tuple(locations), tuple(instructions))


# The parts of an HLO line that a narrow view leaves out.
_METADATA = re.compile(r", metadata=\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\}")
_CONFIG = re.compile(r", (?:backend_config|frontend_attributes)=\{.*\}$")


_REPLICATED = ", sharding={replicated}"  # of a value that every device has, as on one device


def short(line: str) -> str:
    """A line of HLO without its metadata, the backend's configuration, and a sharding that says nothing.

    Example:
        >>> from jaxtorch.insight.hlo.listing import short
        >>> short('  %a = f32[] add(%b, %c), metadata={op_name="jit(f)/a}b"}, backend_config={"n":"7"}')
        '  %a = f32[] add(%b, %c)'
    """
    return _CONFIG.sub("", without_metadata(line).replace(_REPLICATED, ""))


def without_metadata(line: str) -> str:
    """A line of HLO without its metadata."""
    return _METADATA.sub("", line)
