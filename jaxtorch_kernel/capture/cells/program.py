"""The programs of one cell under `%%pure` or `%%jit`, and how they run.

A cell is a function under `pure` or `jit`. Its arguments are the tensors that its names refer to; everything else that
it reads is recorded and guarded as for any other function (`capture/dependencies/`).

While the cell is traced, its code runs in the user's namespace, where the names of tensors refer to the traced inputs.
A name that the cell assigns before reading it is hidden during the trace. If the code reads it after all (because a
loop that assigns it had no iterations), it becomes an input and the trace starts over.

Parameters of modules on the CPU are inputs too: during the trace, the modules' tables hold tensors of the device.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import cast

import jax
import torch

from ...base.options import config
from ...base.torch_private import pytree
from ...device import interrupts
from ...programs import stats, tracing
from ...storage.buffer import buffer_of
from ..dependencies.excluded import Excluded
from ..dependencies.host_number import value_of
from ..dependencies.tokens import token
from ..errors import CaptureError, MakesParameters
from ..jit import Jit, jit, without_history
from ..modes import Modes
from ..pure import Pure, pure
from ..reach import Reach
from .code import LAST_VALUE, CellCode
from .interface import UNNAMED, CellOptions, CellOutcome
from .namespace import Snapshot, remove, run_to_completion

Tensor = torch.Tensor
_WARNING_REGISTRY = "__warningregistry__"  # Python records in it which warnings it has shown


class StaticTensor:
    """A tensor whose value is compiled into the program."""

    def __init__(self, name: str, tensor: Tensor):
        self.name = name
        self._value = tensor.detach().cpu()
        self._key = name, token(tensor), self._value.numpy().tobytes()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticTensor) and self._key == other._key

    def __repr__(self) -> str:
        return f"the value of {self.name}"

    def tensor(self) -> Tensor:
        """The tensor on the device, with a value that traced code may read."""
        return torch.tensor(self._value.tolist(), dtype=self._value.dtype, device="jax")


class CellProgram:
    """The programs of one cell.

    Args:
        namespace: the user's.
        options: of the magic.

    Attributes:
        code: of the current run.
        promoted: names that turned out to be read before they are assigned.
        traces, seconds: how often the cell was traced, and how long the last trace took.
    """

    def __init__(self, namespace: dict[str, object], options: CellOptions):
        self.namespace = namespace
        self.options = options
        self.code: CellCode
        self.promoted: set[str] = set()
        self.traces = 0
        self.seconds = 0.0
        self._compiled = self._new_program()
        self._reach: Reach  # of the current run
        self._before: Snapshot  # of the state before it
        self._reads_cpu = False  # whether inputs are on the CPU

    def run(self, code: CellCode) -> CellOutcome:
        """Run the cell. Either its names are set in the namespace, or nothing changes."""
        self.code = code
        self._compiled.source.title = "" if self.options.name != UNNAMED else code.title
        try:
            return self._run_or_restore()
        finally:
            for name in ("_reach", "_before"):  # so that they keep no tensors alive
                vars(self).pop(name, None)  # Ctrl-C may have come before they were set

    def _run_or_restore(self) -> CellOutcome:
        while True:
            reach = self._reach = self._find_inputs()
            before = self._before = Snapshot(self.namespace, reach, self.options.effects)
            try:
                return self._run(reach)
            except MakesParameters as error:
                run_to_completion(before.restore)
                if self._reads_cpu:
                    raise
                self._compiled.allow_plain(error)
                return self._run_plain(error)
            except NameError as error:
                run_to_completion(before.restore)
                hidden = set(reach.hidden) & before.names.keys()
                if error.name not in hidden:
                    raise
                self.promoted.add(error.name)
            except BaseException:
                run_to_completion(before.restore)
                raise

    def _find_inputs(self) -> Reach:
        code = self.code
        reads = [*code.reads, *self.promoted]
        reach = Reach(self.namespace, set(code.sets) - set(reads))
        for name in reads:
            reach.name(name, name not in self.options.static)
        reach.leave_filled(code.code)
        return reach

    def _statics(self) -> tuple[StaticTensor, ...]:
        """The tensors that are compared by value, so that the code may read their values."""
        values = {name: self.namespace.get(name) for name in self.options.static}
        return tuple(StaticTensor(n, v) for n, v in values.items() if isinstance(v, Tensor))

    def _run(self, reach: Reach) -> CellOutcome:
        options, program = self.options, self._compiled
        statics = self._statics()
        names = {*reach.hidden, *reach.inputs, *(static.name for static in statics)}
        excluded = Excluded(
            self.namespace, frozenset(names), {id(table) for _, table, _ in reach.lent}
        )
        vars(program._function)["excluded"] = excluded
        self._reads_cpu = self._has_cpu_inputs(reach)
        traces, compiled = self.traces, len(stats.compiled)
        with self._scope(), program.exclusive():
            given = {static.name: static for static in statics} | reach.inputs
            replay, arguments, buffers, was_traced = program.find((), given)
            replay.compile()

            def run_and_assign() -> tuple[dict[str, object], object]:
                values, deleted, shown = replay.run(arguments.leaves, buffers, arguments)
                self.namespace.update(values)
                remove(self.namespace, {*deleted, *options.donate} - values.keys())
                for repeat in () if was_traced else replay.again:
                    repeat()
                self._before.discard()
                return values, shown

            values, shown = interrupts.uninterrupted(run_and_assign)
            if replay.captured.jaxpr.effects:  # what it prints belongs to this cell
                torch.jax.synchronize()  # type: ignore[attr-defined]  # the device's module
        traced = self.traces > traces
        return CellOutcome(
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

    def _run_plain(self, error: MakesParameters) -> CellOutcome:
        """Run the cell as plain Python: it creates parameters that the program of the next run reads."""
        namespace = self.namespace
        self.traces -= 1
        with self._scope():
            exec(self.code.code, namespace)
        shown = namespace.pop(LAST_VALUE, None)
        values = {n: namespace[n] for n in self.code.sets if n in namespace}
        if self.options.effects:
            values = pytree.tree_map_only(Tensor, without_history, values)
            namespace.update(values)
        return CellOutcome(shown, 0, len(values), False, self.traces, [error.what], 0.0, 0.0, True)

    def _has_cpu_inputs(self, reach: Reach) -> bool:
        """Whether inputs are on the CPU; refuses those that a step would write to there."""
        has_cpu_inputs = False
        for name, value in reach.inputs.items():
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, Tensor) or leaf.device.type != "cpu":
                    continue
                has_cpu_inputs = True
                if self.options.effects and leaf.requires_grad:
                    raise CaptureError(
                        f"`{name}` is on the CPU, where %%jit cannot write its gradient back",
                        f"Move it to the device: `{_outer(name)} = {_outer(name)}.jax()`.",
                        *self._line_of(name),
                    )
        return has_cpu_inputs

    def _new_program(self) -> Pure | Jit:
        def cell(**given: object) -> object:
            statics = [value for value in given.values() if isinstance(value, StaticTensor)]
            return self._trace(
                statics, {n: v for n, v in given.items() if type(v) is not StaticTensor}
            )

        vars(cell)["reached"] = self._reached  # the objects that may get gradients
        vars(cell)["site"] = lambda: (self.code.file, self.code.first_line)
        make = jit if self.options.effects else pure
        program: Pure | Jit = make(cell, name=self.options.name, donate=self.options.donate)
        return program

    def _reached(self) -> list[object]:
        reach = self._reach
        return [*reach.modules.values(), *reach.optimizers.values(), *reach.tensors]

    # -- in the trace -----------------------------------------------------------------------------------------

    def _trace(
        self, statics: Sequence[StaticTensor], given: dict[str, object]
    ) -> tuple[dict[str, object], list[str], object]:
        """Run the cell's code on the traced inputs.

        Returns:
            the names that it assigned, with their values; those that it deleted; the value of its last expression.
        """
        started = time.perf_counter()
        namespace, before, reach = self.namespace, self._before, self._reach
        before.add_gradients()
        modes = Modes()
        identities = {name: _identities(value) for name, value in given.items()}
        try:
            namespace.update({n: v for n, v in given.items() if n in before.names})
            for path, table, name in reach.lent:
                table[name] = cast(Tensor, given[path])
            for static in statics:
                namespace[static.name] = static.tensor()
            remove(namespace, reach.hidden & namespace.keys())
            with torch.device("jax") if self._reads_cpu else contextlib.nullcontext():
                exec(self.code.code, namespace)
            shown = namespace.pop(LAST_VALUE, None)
            known = {*given, *(static.name for static in statics)}
            self._check(given, identities, modes, known)
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
            run_to_completion(before.restore_names)
            for path, table, name in reach.lent:
                table[name] = reach.inputs[path]
            self.traces += 1
            self.seconds = time.perf_counter() - started

    def _check(
        self,
        given: dict[str, object],
        identities: dict[str, list[int]],
        modes: Modes,
        known: set[str],
    ) -> None:
        """Refuse code that changes what a cell must not change."""
        magic = "%%jit" if self.options.effects else "%%pure"
        before = self._before
        self._check_writes(given)
        name = next((n for n, old in identities.items() if _identities(given[n]) != old), None)
        if name is not None:
            raise CaptureError(
                f"the cell changes the contents of `{name}`, which existed before the cell",
                f"The Python of a {magic} cell runs only once, while it is traced: assign the new value to a "
                f"variable, and change `{name}` in the next cell.",
                *self._line_of(name),
            )
        for name, value in self.namespace.items():
            allowed = name in self.code.sets or name in known or self.code.star
            if name in (_WARNING_REGISTRY, LAST_VALUE) or allowed:
                continue
            if before.names.get(name, before) is not value_of(value):
                raise CaptureError(
                    f"a function assigns the global `{name}`",
                    f"The Python of a {magic} cell runs only once, while it is traced: return the value and assign "
                    "it in the cell itself.",
                )
        for what in modes.restore():
            raise CaptureError(f"the cell changes {what}", "Change it in a cell of its own.")

    def _check_writes(self, given: dict[str, object]) -> None:
        """Refuse code that fills `.grad` (under %%pure), or writes to a tensor that must not change."""
        # Under %%jit the list of gradients is empty.
        filled = [t for t, grad in self._before.gradients if t.grad is not grad]
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
                *self._line_of("backward"),
            )
        trace = tracing.current()
        assert trace is not None
        written = {id(cell): cell for cell in trace.written()}
        for name, value in given.items():
            originals = pytree.tree_leaves(self._reach.inputs[name])
            for leaf, tensor in zip(pytree.tree_leaves(value), originals, strict=False):
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
                    f"the cell writes into `{name}`, a tensor that existed before the cell",
                    advice,
                    *trace.writers.get(id(buffer_of(leaf)), (None, None)),
                )

    def _check_outputs(self, values: dict[str, object], trace: tracing.Trace) -> None:
        """Refuse modules that hold tensors of the trace, which no run could replace."""
        for name, value in values.items():
            for leaf in pytree.tree_leaves(value):
                if not isinstance(leaf, torch.nn.Module):
                    continue
                if any(_is_traced_by(trace, t) for t in (*leaf.parameters(), *leaf.buffers())):
                    raise CaptureError(
                        f"`{name}`, a {type(leaf).__name__} created in the cell, holds tensors that have no value yet",
                        "Create it in a cell of its own, or keep the tensors in variables, lists or dictionaries.",
                        *self._line_of(name),
                    )

    def _line_of(self, name: str) -> tuple[str | None, int | None]:
        """File and line of the cell that first mentions a name, for an error."""
        line = self.code.line_of(_outer(name))
        return (self.code.file, line) if line is not None else (None, None)


def _outer(path: str) -> str:
    """The name that a path begins with."""
    return path.partition(".")[0].partition("[")[0]


def _identities(value: object) -> list[int]:
    """The identity of each leaf of a container."""
    return [id(leaf) for leaf in pytree.tree_leaves(value)]


def _is_traced_by(trace: tracing.Trace, tensor: Tensor) -> bool:
    """Whether a trace created a tensor whose values are not known yet."""
    if tensor.device.type != "jax":
        return False
    buffer = buffer_of(tensor)
    return trace.created_here(buffer) and isinstance(buffer.array, jax.core.Tracer)
