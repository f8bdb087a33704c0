"""Programs that the session does not run: its own on another chip, and what `lower(...).compile()` returned."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields

from jax.extend.core import ClosedJaxpr

from ..capture.lowering import Executable
from ..capture.target import request
from ..capture.target_program import TargetProgram
from .fit.report import Fit, fit
from .programs import Memory, ProgramInfo


@dataclass(frozen=True, eq=False)
class TargetInfo(ProgramInfo):
    """A program of the session as the compiler of another chip made it. It never runs.

    Its trace and StableHLO are those of the session's program.

    Attributes:
        executable: what was compiled.
    """

    executable: Executable

    @property
    def alive(self) -> bool:
        """True: what can be read of it is kept."""
        return True

    def hlo_proto(self) -> bytes:
        """The optimized HLO, a serialized `HloModuleProto`."""
        return self.executable.hlo_proto

    def hlo_text(self, proto: bytes) -> str:
        """The text of the target's compiler: jaxlib cannot print every program of it."""
        return self.executable.hlo

    def memory(self) -> Memory:
        """The memory of one run on each chip."""
        sizes = self.executable.memory_analysis()
        names = ("argument", "output", "alias", "temp", "generated_code")
        return Memory(*(sizes[f"{name}_size_in_bytes"] for name in names))

    def buffer_assignment(self) -> bytes | None:
        """The layout of its memory; None if the compiler does not report it, as libtpu."""
        return self.executable.buffers or None

    @property
    def flops(self) -> int | None:
        """Floating-point operations of one run as XLA counts them. A loop body counts once."""
        return int(self.executable.cost_analysis().get("flops", 0))


def on_targets(info: ProgramInfo, targets: Sequence[str]) -> list[TargetProgram]:
    """A program of the session on each of these targets; each is requested if it was not."""
    return [request(info._record, target) for target in targets]


def info_of(info: ProgramInfo, program: TargetProgram) -> TargetInfo:
    """The compiled result of `on_targets`, to read as the session's own programs are read.

    Raises:
        LookupError: it is not compiled.
    """
    if program.executable is None:
        raise LookupError(f"{info.name} is not compiled for {program.target}")
    values = {f.name: getattr(info, f.name) for f in fields(info)}
    values["title"] = f"{info.title} for {program.target}"
    return TargetInfo(**values, executable=program.executable)


@dataclass(frozen=True, eq=False)
class LoweredInfo(TargetInfo):
    """A program that `lower(...).compile()` returned. It has no number in the session, and its id is negative."""

    @property
    def signature(self) -> tuple[str, ...]:
        """Empty: its inputs are not known."""
        return ()

    def stablehlo(self) -> None:
        """None: the compiled program does not have it."""
        return

    def jaxpr(self) -> str | None:
        """The jaxpr, as JAX prints it; None if it is unknown."""
        return None if self.executable.jaxpr is None else str(self.executable.jaxpr)

    def trace(self) -> ClosedJaxpr | None:
        """The trace; None if it is unknown."""
        return self.executable.jaxpr


_numbers = itertools.count(-1, -1)


def info_of_compiled(name: str, executable: Executable) -> LoweredInfo:
    """What `lower(...).compile()` returned, to read as programs of the session are read.

    Args:
        name: of the variable that holds it.
    """
    mesh = "".join(f", {axis}={size}" for axis, size in executable.mesh.items())
    return LoweredInfo(
        id=next(_numbers),
        name=name,
        title=f"{name} for {executable.target or executable.device}{mesh}",
        kind="lower",
        part="",
        location=None,
        calls=0,
        hits=0,
        traces=0,
        trace_seconds=0.0,
        lowering_seconds=0.0,
        xla_seconds=0.0,
        persistent_hit=None,
        reason=None,
        source=0,
        _record=None,
        executable=executable,
    )


_fits: weakref.WeakKeyDictionary[TargetProgram, Fit] = weakref.WeakKeyDictionary()


def fit_of(program: TargetProgram) -> Fit | None:
    """The fit report of a program on its target; None while it is not compiled."""
    if program.executable is None:
        return None
    found = _fits.get(program)
    if found is None:
        found = _fits[program] = fit(program.executable)
    return found
