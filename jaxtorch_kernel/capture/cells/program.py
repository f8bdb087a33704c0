"""The programs of one cell under `%%pure` or `%%jit`, and how they run.

A cell is a function under `pure` or `jit`. Its arguments are the tensors that its names refer to; everything else that
it reads is recorded and guarded as for any other function (`capture/dependencies/`).

While the cell is traced, its code runs in the user's namespace, where the names of tensors refer to the traced inputs.
A name that the cell sets before reading it is hidden during the trace. If the code reads it after all (because a loop
that sets it had no iterations), it becomes an input and the trace starts over.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import torch

from ...base.options import config
from ...base.torch_private import pytree
from ...device import interrupts
from ...programs import stats, tracing
from ...storage.buffer import buffer_of
from ..dependencies.notes import Own
from ..dependencies.tokens import token
from ..errors import CaptureError, MakesParameters
from ..jit import jit, without_history
from ..modes import Modes
from ..pure import pure
from ..reach import Reach
from .code import SHOWN, CellCode
from .namespace import Before, remove, surely

Tensor = torch.Tensor
WARNED = "__warningregistry__"  # where Python notes that a warning was given


class Options(NamedTuple):
    """The options on the magic's line, except those for its report."""

    effects: bool  # %%jit
    name: str
    static: tuple[str, ...]
    no_grad: bool
    donate: tuple[str, ...]
    precision: str | None


class Outcome(NamedTuple):
    """The outcome of a run, for its report."""

    shown: Any
    inputs: int
    outputs: int
    traced: bool
    nth: int  # traces so far
    reasons: list[str]
    trace_seconds: float
    xla_seconds: float
    plain: bool = False  # it ran as plain Python


class Static:
    """A tensor whose value is compiled into the program."""

    def __init__(self, name: str, tensor: Tensor):
        self.name = name
        self._value = tensor.detach().cpu()
        self._key = name, token(tensor), self._value.numpy().tobytes()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __repr__(self) -> str:
        return f"the value of {self.name}"

    def tensor(self) -> Tensor:
        """The tensor on the device, with a value that traced code may read."""
        return torch.tensor(self._value.tolist(), dtype=self._value.dtype, device="jax")


class Program:
    """The programs of one cell."""

    def __init__(self, namespace: dict[str, Any], options: Options):
        self.namespace = namespace
        self.options = options
        self.code: CellCode
        self.promoted: set[str] = set()  # names that turned out to be read before they are set
        self.traces = 0
        self.seconds = 0.0
        self._compiled = self._new_program()
        self._reach: Reach
        self._before: Before
        self._borrowed = False

    def run(self, code: CellCode) -> Outcome:
        """Run the cell. Either its names are set in the namespace, or nothing changes."""
        self.code = code
        try:
            return self._run_or_restore()
        finally:
            for name in ("_reach", "_before"):  # they hold what may be dropped now
                vars(self).pop(name, None)  # Ctrl-C may have come before they were there

    def _run_or_restore(self) -> Outcome:
        while True:
            reach = self._reach = self._look()
            before = self._before = Before(self.namespace, reach, self.options.effects)
            try:
                return self._run(reach)
            except MakesParameters as error:
                surely(before.restore)
                if self._borrowed:
                    raise
                self._compiled.allow_plain(error)
                return self._run_plain(error)
            except NameError as error:
                surely(before.restore)
                hidden = set(reach.hidden) & before.names.keys()
                if error.name not in hidden:
                    raise
                self.promoted.add(error.name)
            except BaseException:
                surely(before.restore)
                raise

    def _look(self) -> Reach:
        code = self.code
        reads = [*code.reads, *self.promoted]
        reach = Reach(self.namespace, set(code.sets) - set(reads))
        for name in reads:
            reach.name(name, name not in self.options.static)
        reach.leave_filled(code.code)
        return reach

    def _statics(self) -> tuple[Static, ...]:
        """The tensors that are compared by value, which the code may therefore read."""
        values = {name: self.namespace.get(name) for name in self.options.static}
        return tuple(Static(n, v) for n, v in values.items() if isinstance(v, Tensor))

    def _run(self, reach: Reach) -> Outcome:
        options, program = self.options, self._compiled
        statics = self._statics()
        names = {*reach.hidden, *reach.inputs, *(static.name for static in statics)}
        own = Own(self.namespace, frozenset(names), {id(table) for _, table, _ in reach.lent})
        vars(program._function)["own"] = own
        self._borrowed = self._borrows(reach)
        traces, compiled = self.traces, len(stats.compiled)
        with self._scope(), program.exclusive():
            given = {static.name: static for static in statics} | reach.inputs
            replay, arguments, cells, now = program.find((), given)
            replay.compile()

            def step_and_names() -> tuple[dict[str, Any], Any]:
                values, deleted, shown = replay.run(arguments.leaves, cells, arguments)
                self.namespace.update(values)
                remove(self.namespace, {*deleted, *options.donate} - values.keys())
                for again in () if now else replay.again:
                    again()
                return values, shown

            values, shown = interrupts.uninterrupted(step_and_names)
            if replay.captured.jaxpr.effects:  # what it prints belongs to this cell
                torch.jax.synchronize()  # type: ignore[attr-defined]  # the device's module
        traced = self.traces > traces
        return Outcome(
            shown,
            sum(
                "." not in p and "[" not in p
                for p in [*reach.inputs, *reach.modules, *reach.optimizers]
            ),
            len(values),
            traced,
            self.traces,
            [reason.what for reason in program.source.history[-1].reasons] if traced else [],
            self.seconds,
            sum(c.lowering + c.xla for c in stats.compiled[compiled:]),
        )

    @contextlib.contextmanager
    def _scope(self) -> Iterator[None]:
        with contextlib.ExitStack() as scope:
            if self.options.no_grad:
                scope.enter_context(torch.no_grad())
            if self.options.precision is not None:
                scope.enter_context(config(matmul_precision=self.options.precision))
            yield

    def _run_plain(self, error: MakesParameters) -> Outcome:
        """Run the cell as plain Python: it makes parameters that the program of the next run reads."""
        namespace = self.namespace
        self.traces -= 1
        with self._scope():
            exec(self.code.code, namespace)
        shown = namespace.pop(SHOWN, None)
        values = {n: namespace[n] for n in self.code.sets if n in namespace}
        if self.options.effects:
            values = pytree.tree_map_only(Tensor, without_history, values)
            namespace.update(values)
        return Outcome(shown, 0, len(values), False, self.traces, [error.what], 0.0, 0.0, True)

    def _borrows(self, reach: Reach) -> bool:
        """Whether tensors come from the CPU; refuses those that a step would write to there."""
        borrowed = False
        for name, value in reach.inputs.items():
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, Tensor) or leaf.device.type != "cpu":
                    continue
                borrowed = True
                if self.options.effects and leaf.requires_grad:
                    raise CaptureError(
                        f"`{name}` is on the CPU, where %%jit cannot write its gradient back",
                        f"Move it to the device: `{_outer(name)} = {_outer(name)}.jax()`.",
                        *self._place(name),
                    )
        return borrowed

    def _new_program(self) -> Any:
        def cell(**given: Any) -> Any:
            statics = [value for value in given.values() if isinstance(value, Static)]
            return self._traced(statics, {n: v for n, v in given.items() if type(v) is not Static})

        vars(cell)["reached"] = self._reached  # where gradients may appear
        vars(cell)["site"] = lambda: (self.code.file, self.code.first_line)
        make = jit if self.options.effects else pure
        made = make(cell, name=self.options.name, donate=self.options.donate)
        made.source.kind = "cell"
        return made

    def _reached(self) -> list[Any]:
        reach = self._reach
        return [*reach.modules.values(), *reach.optimizers.values(), *reach.tensors]

    # -- in the trace -----------------------------------------------------------------------------------------

    def _traced(self, statics: Sequence[Static], given: dict[str, Any]) -> Any:
        """Run the cell's code on the traced inputs; see the module docstring."""
        started = time.perf_counter()
        namespace, before, reach = self.namespace, self._before, self._reach
        before.code_runs()
        modes = Modes()
        structure = {name: _contents(value) for name, value in given.items()}
        try:
            namespace.update({n: v for n, v in given.items() if n in before.names})
            for path, table, name in reach.lent:
                table[name] = given[path]
            for static in statics:
                namespace[static.name] = static.tensor()
            remove(namespace, reach.hidden & namespace.keys())
            with torch.device("jax") if self._borrowed else contextlib.nullcontext():
                exec(self.code.code, namespace)
            shown = namespace.pop(SHOWN, None)
            known = {*given, *(static.name for static in statics)}
            self._check(given, structure, modes, known)
            sets = self.code.sets
            if self.code.star:
                sets = [n for n, v in namespace.items() if before.names.get(n, before) is not v]
            values = {n: namespace[n] for n in sets if n in namespace}
            deleted = [n for n in sets if n not in namespace and n not in reach.hidden]
            trace = tracing.current()
            assert trace is not None
            self._check_outputs(values, trace)
            return values, deleted, shown
        finally:
            surely(before.restore_names)
            for path, table, name in reach.lent:
                table[name] = reach.inputs[path]
            self.traces += 1
            self.seconds = time.perf_counter() - started

    def _check(
        self, given: dict[str, Any], structure: dict[str, Any], modes: Modes, known: set[str]
    ) -> None:
        """Refuse what a cell may not change."""
        magic = "%%jit" if self.options.effects else "%%pure"
        before = self._before
        self._check_writes(given)
        name = next((n for n, old in structure.items() if _contents(given[n]) != old), None)
        if name is not None:
            raise CaptureError(
                f"the cell changes the contents of `{name}`, which existed before the cell",
                f"The Python of a {magic} cell runs only once, while it is traced: assign the new value to a "
                f"variable, and change `{name}` in the next cell.",
                *self._place(name),
            )
        for name, value in self.namespace.items():
            own = name in self.code.sets or name in known or self.code.star or name == WARNED
            if not own and name != SHOWN and before.names.get(name, before) is not value:
                raise CaptureError(
                    f"a function assigns the global `{name}`",
                    f"The Python of a {magic} cell runs only once, while it is traced: return the value and assign "
                    "it in the cell itself.",
                )
        for what in modes.restore():
            raise CaptureError(f"the cell changes {what}", "Change it in a cell of its own.")

    def _check_writes(self, given: dict[str, Any]) -> None:
        filled = [t for t, grad in self._before.grads if t.grad is not grad]  # none under %%jit
        known = {id(t) for t in self._reach.tensors}
        filled += [
            t
            for t in pytree.tree_leaves(given)
            if isinstance(t, Tensor) and t.is_leaf and t.grad is not None and id(t) not in known
        ]
        if filled:
            raise CaptureError(
                "the cell fills .grad by calling backward()",
                "Call backward() in the next cell, or use %%jit, which does both in one program.",
                *self._place("backward"),
            )
        trace = tracing.current()
        assert trace is not None
        written = {id(cell): cell for cell in trace.written()}
        for name, value in given.items():
            own = pytree.tree_leaves(self._reach.inputs[name])
            for leaf, tensor in zip(pytree.tree_leaves(value), own, strict=False):
                if not isinstance(leaf, Tensor) or id(buffer_of(leaf)) not in written:
                    continue
                if self.options.effects and tensor.device.type == "jax":
                    continue
                advice = (
                    f"Make a new tensor (`{name} = {name} + 1`), or write %%jit, which writes back."
                )
                if tensor.device.type == "cpu" and (self.options.effects or "." in name):
                    advice = f"It is on the CPU: move `{_outer(name)}` to the device with `.jax()`."
                raise CaptureError(
                    f"the cell writes into `{name}`, a tensor that was there before it",
                    advice,
                    *trace.writers.get(id(buffer_of(leaf)), (None, None)),
                )

    def _check_outputs(self, values: dict[str, Any], trace: tracing.Trace) -> None:
        """Refuse objects that keep tensors of the trace where nobody can exchange them."""
        for name, value in values.items():
            for leaf in pytree.tree_leaves(value):
                if any(_made_in(trace, t) and _is_traced(t) for t in _kept_tensors(leaf)):
                    raise CaptureError(
                        f"`{name}`, a {type(leaf).__name__} created in the cell, holds tensors that have no value yet",
                        "Create it in a cell of its own, or keep the tensors in variables, lists or dictionaries.",
                        *self._place(name),
                    )

    def _place(self, name: str) -> tuple[str | None, int | None]:
        line = self.code.line_of(_outer(name))
        return (self.code.file, line) if line is not None else (None, None)


def _outer(path: str) -> str:
    """The name that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


def _contents(value: Any) -> list[int]:
    """The identity of everything in containers."""
    return [id(leaf) for leaf in pytree.tree_leaves(value)]


def _kept_tensors(value: Any) -> list[Tensor]:
    """The tensors that an object keeps in itself."""
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, Tensor | type | types.FunctionType | types.ModuleType):
        return []
    kept = getattr(value, "__dict__", {})
    return [t for t in pytree.tree_leaves(list(kept.values())) if isinstance(t, Tensor)]


def _is_traced(tensor: Tensor) -> bool:
    return isinstance(buffer_of(tensor).array, jax.core.Tracer)


def _made_in(trace: tracing.Trace, tensor: Tensor) -> bool:
    return tensor.device.type == "jax" and trace.bore(buffer_of(tensor))
