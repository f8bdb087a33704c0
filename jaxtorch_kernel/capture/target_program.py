"""A captured program of the session on another chip: its state, and its lowering for that chip from its trace."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
from jax.extend.core import Jaxpr
from jax.sharding import NamedSharding

from ..programs.jaxprs import jaxprs
from ..programs.stats import ProgramRecord
from .dependencies.labels import Role
from .layouts import devices_of
from .lowering import Executable, Input, Lowered
from .tpu import CompileError, Request

_ENDED = ("compiled", "failed", "cancelled", "dropped")


@dataclass(eq=False)
class TargetProgram:
    """A program of the session on another chip.

    Attributes:
        target: the topology, such as "v5e:2x4".
        state: "waiting", "lowering", "compiling", "compiled", "failed", "cancelled" by the user, or "dropped", because
            the program is gone or too many waited.
        executable: the compiled program: its HLO, memory and costs; None while there is none.
        error: why it failed, in one line.
        note: what to know about the result, such as how many of the target's chips it uses.
        started: when its lowering began (`time.monotonic`), while it is lowered or compiled.
        took: the seconds of lowering and compiling, once it has ended.
        request: what the compiling process has of it, while it compiles.
    """

    record: ProgramRecord = field(repr=False)
    target: str
    state: str = "waiting"
    executable: Executable | None = field(default=None, repr=False)
    error: str = ""
    note: str = ""
    started: float | None = field(default=None, repr=False)
    took: float = field(default=0.0, repr=False)
    request: Request | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.record.name

    @property
    def title(self) -> str:
        """What a reader calls it: its name; for a cell without one, its first line."""
        return self.record.cause.function.title or self.name

    @property
    def part(self) -> str:
        """Which part of the computation it is: "" for all, "saving", or "backward"."""
        return self.record.part

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in _ENDED

    @property
    def seconds(self) -> float:
        """What lowering and compiling took so far."""
        return self.took if self.started is None else time.monotonic() - self.started


def lowered_for(program: TargetProgram) -> Lowered | None:
    """The program of a request, lowered for its target; None if the program is gone.

    If the session's tensors are sharded over a mesh with as many devices as the target, the program keeps these
    shardings. A program of one device is compiled for one chip of the target.

    Raises:
        CompileError: the mesh has another number of devices, or the program calls Python.
    """
    record, target = program.record, program.target
    handle = record.handle()
    traced = None if handle is None else handle.traced
    if not isinstance(traced, jax.stages.Traced):
        return None
    closed = traced.jaxpr

    _check_callbacks(closed.jaxpr)

    def again(*arrays: jax.Array) -> list[jax.Array]:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arrays)

    names = [name or "argument" for name in closed.jaxpr.debug_info.arg_names]
    inputs = [Input(name, role_of(name, record.cause.roles)) for name in names]
    arguments = jax.tree.leaves(traced.args_info)
    donated = [i for i, argument in enumerate(arguments) if argument.donated]
    shardings = [aval.sharding for aval in record.avals]
    placed = [s for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1]
    devices = devices_of(target)
    if not placed:
        if devices > 1:
            program.note = f"compiled for one of {devices} devices: the session's tensors are not sharded over them"
        return Lowered(again, record.avals, record.name, target, donated, inputs)
    if placed[0].mesh.size != devices:
        raise CompileError(
            f"the session's mesh has {placed[0].mesh.size} devices, but {target} has {devices}"
        )
    return Lowered(again, record.avals, record.name, target, donated, inputs, placed)


def _check_callbacks(program: Jaxpr) -> None:
    names = {equation.primitive.name for jaxpr in jaxprs(program) for equation in jaxpr.eqns}
    calls = sorted(n for n in names if "callback" in n or n == "debug_print")
    if calls:
        raise CompileError(
            f"it calls Python while it runs ({calls[0]}), which a program for another machine cannot"
        )


def role_of(name: str, roles: Mapping[str, Role]) -> Role | Literal["cotangent"]:
    """The role of an input of a program, by the roles of what was captured.

    A backward program also has inputs that the capture had not: cotangents, and what the forward program saved. The
    parameters of layers that are alike may be one input, which is named after their range.

    Example:
        >>> from jaxtorch.capture.target_program import role_of
        >>> roles = {"model.0.weight": "parameter", "x": "argument"}
        >>> [role_of(name, roles) for name in ("x", "model.0-2.weight", "residual[0]", "grad_output")]
        ['argument', 'parameter', 'tensor', 'cotangent']
    """
    if name.startswith("grad_output"):
        return "cotangent"
    return roles.get(re.sub(r"(\d+)-\d+", r"\1", name), "tensor")
