"""The programs that a subcommand's arguments name, and these names for completion."""

from __future__ import annotations

from collections.abc import Iterable

from IPython.core.error import UsageError

from jaxtorch.capture.lowering import Executable, Lowered
from jaxtorch.insight.elsewhere import info_of_compiled
from jaxtorch.insight.programs import ProgramInfo, program, programs

from .table import Invocation


def find(call: Invocation, name: str) -> ProgramInfo:
    """The program with a name or a number, or the one that a variable of this name holds.

    Raises:
        UsageError: there is none.
    """
    value = call.shell.user_ns.get(name)
    if isinstance(value, Executable):
        return info_of_compiled(name, value)
    if isinstance(value, Lowered):
        raise UsageError(f"{name} is not compiled: `{name} = {name}.compile()` compiles it.")
    try:
        return program(name)
    except LookupError as error:
        raise UsageError(sentence(error)) from None


def sentence(error: LookupError) -> str:
    """The message of an error as a sentence."""
    text = str(error.args[0])
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def captured_names(start: str) -> Iterable[str]:
    """The names of captured programs, the latest first."""
    return _names(start, programs())


def runnable_names(start: str) -> Iterable[str]:
    """The same for programs that can still run."""
    return _names(start, [p for p in programs() if p.alive])


def _names(start: str, programs: list[ProgramInfo]) -> Iterable[str]:
    """The matching names. Eager operators, hundreds in a session, are offered only if nothing else matches."""
    latest = [p for p in reversed(programs) if p.name.startswith(start)]
    captured = dict.fromkeys(p.name for p in latest if p.kind not in ("eager", "engine"))
    return captured or (dict.fromkeys(p.name for p in latest) if start else ())
