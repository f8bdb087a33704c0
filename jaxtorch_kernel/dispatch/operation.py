"""One operator on the device: its programs, and every call outside the hot path (`hot.py`).

A cache miss builds a program. Writes, random numbers, views with offsets and calls inside a trace run here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import torch

from ..base import ambient
from ..base.options import Options
from ..lowerings.checked import CHECKS
from ..lowerings.registry import Lowering
from ..programs import program_cache, rng, tracing, watching
from ..programs.atomic import DONATED_ERRORS, ensure_unshared, run_into, was_replaced
from ..programs.errors import explain_call
from ..programs.program_cache import ProgramCache
from ..programs.site import origin, printing
from ..storage import placement
from ..storage.buffer import Buffer, geometry
from . import outputs, overlap, values
from . import program as program_module
from .asked import asking, check_dtypes, cpu_error, raise_asked
from .call import (
    Call,
    Positions,
    describe,
    first_positions,
    kind_by_value,
    letter_of,
    template_of,
)
from .cpu import on_cpu
from .hot import hot_path
from .meta import call_meta
from .numbers import check_limits, number_operands
from .program import Program, build_lock
from .results import effects, results_of
from .schema import GENERATOR, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS, Signature, short_name
from .traced import run_traced

Tensor = torch.Tensor

_TORCH_PRECISION = {"highest": "highest", "high": "high", "medium": "default"}


class Operation:
    """An operator overload and its lowering, callable with the operator's arguments.

    Args:
        op: the overload, or None for a JAX function of our own (`name` then names it).
        lowering: its JAX function.
        operation_of: gives the operation of another overload, for an `out=` overload's functional one.
        copy_cpu: take CPU tensors with dimensions too, by copying them (indices, as on cuda).
        checked: check arguments beyond what Meta kernels say. Off for an operation that is such a check itself.
    """

    def __init__(
        self,
        op: torch._ops.OpOverload | None,
        lowering: Lowering,
        operation_of: Callable[..., Any] | None = None,
        name: str = "",
        copy_cpu: bool = False,
        checked: bool = True,
    ):
        self.op = op
        self.lowering = lowering
        self.operation_of = operation_of
        self.copy_cpu = copy_cpu
        self.signature = Signature(op) if op is not None else None
        self.name = name or (short_name(op) if op is not None else "")
        self.cache = ProgramCache()
        self.programs = self.cache.ready
        kinds = list(self.signature.kinds) if self.signature is not None else []
        names = self.signature.names if self.signature is not None else ()
        for i, argument in enumerate(names):
            if argument in lowering.static and kinds[i] in (NUMBER, NUMBERS):
                kinds[i] = STATIC
        if lowering.decomposed:
            kinds = [STATIC if k in (NUMBER, NUMBERS) else k for k in kinds]
        self.kinds = tuple(kinds)
        # Where a number in a tensor's or a Scalar's place is an operand.
        self.numeric = frozenset(i for i, kind in enumerate(kinds) if kind <= NUMBER)
        self.written = self.signature.written if self.signature is not None else ()
        # A factory has no tensor that would tell its program's placement.
        factory = TENSOR not in kinds and TENSORS not in kinds
        self.special = bool(self.written) or lowering.random or factory
        self.asking = asking(op, self.signature) if checked else None
        self.overlaps = overlap.Known()
        self.checking = self._checking() if checked else None
        self.call = hot_path(lambda: self)

    def _checking(self) -> values.Checking | None:
        """The check of the values that the operator is given, where it has one."""
        functional = self.signature.functional if self.signature is not None else None
        if functional is None or short_name(functional) not in CHECKS:
            return None

        def make(op: torch._ops.OpOverload, lowering: Lowering) -> Operation:
            return Operation(
                op, lowering, name=f"check of {self.name}", copy_cpu=self.copy_cpu, checked=False
            )

        return values.Checking(functional, make)

    def inputs_of(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments without those that are `out=`."""
        if self.signature is None or not self.signature.is_out:
            return args
        return tuple(a for i, a in enumerate(args) if i not in self.written)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def general(self, *args: Any, **kwargs: Any) -> Any:
        """Any call at all: numbers, views, keywords, a cache miss, a trace."""
        if kwargs:
            assert self.signature is not None
            args = self.signature.complete(args, kwargs)
        call = self._described(args)
        if self.asking is not None:
            self.asking.check(call)
        if self.checking is not None and self.checking.wanted(call.key[0]):
            self.checking.check(self.inputs_of(call.args))
        if tracing.depth and (trace := tracing.current()) is not None:
            return run_traced(self, call, trace)
        return self.run_now(call)

    def run_now(self, call: Call) -> Any:
        """The call on values."""
        program = self.lookup(call)
        if program is None:
            if self.op is not None and printing():
                return self.on_cpu(call.args)
            if self.resized(call):
                return self(*call.args)
            program = self.build(call)
        if self.special:
            return self.run_special(program, call)
        operands = [b.array for b in call.buffers]
        program = self.prepare(program, call, operands)
        execute = program._call or program.compiled()
        watching.launching(program.record)
        try:
            outputs = execute(*operands)
        except DONATED_ERRORS as error:
            if was_replaced(call.buffers, operands):
                return self.run_now(call)
            if not isinstance(error, jax.errors.JaxRuntimeError):
                raise
            raise explain_call(error, self.name, call.buffers) from None
        return results_of(program, outputs, call.tensors)

    def lookup(self, call: Call) -> Program | None:
        """The program of a call, where there is one already. Completes the key."""
        key, buffers = call.key, call.buffers
        if self.written and len(buffers) > 1:
            first = first_positions(buffers)
            key.append(tuple(first))
            if len(set(first)) < len(first):
                assert self.op is not None
                assert self.signature is not None
                self.overlaps.check(self.op, self.signature, call)
        if self.lowering.random or not buffers:
            key.append(placement.current())
        return self.cache.find(tuple(key))

    def _described(self, args: tuple[Any, ...]) -> Call:
        # Tensors and numbers in line, which saves the commonest arguments a call of `describe` each.
        key = ambient.eager()
        tensors: list[Tensor] = []
        buffers: list[Buffer] = []
        numbers: list[tuple[str, Any]] = []
        for kind, a in zip(self.kinds or map(kind_by_value, args), args, strict=False):
            letter = letter_of(type(a))
            if letter is not None and kind <= NUMBER:
                key.append(letter)
                numbers.append((letter, a))
                continue
            if kind == TENSOR and isinstance(a, Tensor):
                buffer = getattr(a.untyped_storage(), "buffer", None)
                if buffer is not None:
                    tensors.append(a)
                    buffers.append(buffer)
                    key.append(geometry(a, buffer))
                    continue
            describe(self, kind, a, key, tensors, buffers, numbers)
        return Call(args, key, tensors, buffers, numbers)

    # -- writes and random numbers -----------------------------------------------------------------------------------

    def run_special(self, program: Program, call: Call) -> Any:
        """A call that writes, draws random numbers, or has no tensor to take its placement from."""
        targets = [call.buffers[i] for i in program.targets]
        for buffer in targets:
            ensure_unshared(buffer)
        sources = [call.buffers[i] for i in program.unique]
        operands = [buffer.array for buffer in sources]
        program = self.prepare(program, call, operands)
        try:
            if not self.lowering.random:
                fresh = self._run_into(program, call, operands, targets)
            else:
                source = self.random_key(call, program)
                with source.drawing() as key:
                    fresh = self._run_into(program, call, [key, *operands], targets)
        except DONATED_ERRORS:
            if not was_replaced(sources, operands):
                raise
            return self.run_special(program, call)
        for buffer in targets:
            buffer.origin = origin(program.writes)
            if watching.watcher is not None:
                watching.watcher.add_result(buffer)
        return results_of(program, fresh, call.tensors)

    def _run_into(
        self, program: Program, call: Call, operands: list[Any], targets: list[Buffer]
    ) -> list[Any]:
        """Run the program and put its outputs where they belong; returns the fresh ones.

        The specs are set before, and taken back where the call did not happen (`programs/atomic.py`).
        """
        execute = program._call or program.compiled()
        watching.launching(program.record)
        fresh = [Buffer(None, leaf.spec) for leaf in program.leaves if leaf is not None]
        dropped = [Buffer(None, None)] if self.lowering.random else []  # type: ignore[arg-type]  # of no use
        old = [(b, b.array, b.spec) for b in targets]
        try:
            for buffer, spec in zip(targets, program.new_specs, strict=True):
                buffer.spec = spec
            # The next key, which comes last, is dropped: it fails where the program does (`rng.RandomKey.drawing`).
            run_into(execute, operands, [*fresh, *targets, *dropped])
            if program.written and program_module.counting:
                program.record.calls += 1  # type: ignore[union-attr]  # it is compiled
        except jax.errors.JaxRuntimeError as error:
            raise explain_call(error, program.name, call.buffers) from None
        finally:
            for buffer, array, old_spec in old:
                if buffer.array is array:
                    buffer.spec = old_spec
        return [b.array for b in fresh]

    def random_key(self, call: Call, program: Program) -> rng.RandomKey:
        """The source of a random call's key."""
        return rng.key_for(_generator_in(self.kinds, call.args), program.where)

    def on_cpu(self, args: tuple[Any, ...]) -> Any:
        """The CPU's kernel, unannounced: for torch's formatting of a tensor."""
        assert self.op is not None
        assert self.signature is not None
        return on_cpu(self.op, self.signature, args, {}, announce=False)

    def resized(self, call: Call) -> bool:
        """Make `out=` tensors fit; True where one changed, and with it the call's key."""
        if self.signature is None or not self.signature.is_out:
            return False
        args = call.args
        assert self.signature.functional is not None
        outs = [args[i] for i in self.written]
        outputs.check_devices(outs, self.name)
        assert self.op is not None
        overlap.check_targets(self.op, self.signature, args, outs)
        inputs = self.inputs_of(args)
        assert self.operation_of is not None
        types = self.operation_of(self.signature.functional).result_types(list(inputs))
        if any(out.dtype != dtype for out, (_, dtype) in zip(outs, types, strict=True)):
            # Some operators cast to the dtype of `out`, some want the very one.
            raise_asked(self.op, self.signature, args)
        return outputs.resize(outs, types)

    def result_types(self, args: list[Any]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Size and dtype of each result of a functional call, without running it."""
        call = self._described(tuple(args))
        program = self.build(call, keep=False)
        return [(leaf.size, leaf.dtype) for leaf in program.leaves if leaf is not None]

    # -- a cache miss ---------------------------------------------------------------------------------------------

    def build(self, call: Call, keep: bool = True, gather: bool = False) -> Program:
        with build_lock:
            frozen = tuple(call.key)
            program = self.cache.find(frozen)
            if program is not None:
                return program
            options: Options = call.key[0]
            args = call.args
            kinds = self.kinds if self.op is not None else tuple(kind_by_value(a) for a in args)
            given = len(args)
            if self.signature is not None:
                args = self.signature.complete(args, {})
            position = Positions()
            outs = self.written if self.signature is not None and self.signature.is_out else ()
            slots = [
                # An argument left at its default is no operand: the key shows that it was left out.
                template_of(kind if i < given else STATIC, a, position)
                for i, (kind, a) in enumerate(zip(kinds, args, strict=True))
            ]
            template = [
                slot for i, slot in enumerate(slots) if kinds[i] != GENERATOR and i not in outs
            ]
            written, structure = effects(self.signature, args, call.tensors)
            if self.op is not None and self.signature is not None and written:
                targets = [call.tensors[i] for i in written]
                overlap.check_targets(self.op, self.signature, call.args, targets)
            precision = options.matmul_precision or _TORCH_PRECISION.get(
                torch.get_float32_matmul_precision()
            )
            make = partial(
                Program,
                self.name,
                self.lowering,
                template,
                call.tensors,
                call.buffers,
                [kind for kind, _ in call.numbers],
                self._metas(args),
                written,
                precision,
                gather,
                structure,
            )
            program = make() if self.lowering.decomposed else self._checked(make, args)
            program.by_hot_path = self.checking is None or not self.checking.wanted_eagerly(options)
            if keep:
                self.cache.add(frozen, program)
            return program

    def _checked(self, make: Callable[[], Program], args: tuple[Any, ...]) -> Program:
        """The program, or torch's own exception where JAX refuses what Meta let pass (a dtype, mostly)."""
        try:
            return make()
        except (TypeError, ValueError, IndexError) as error:
            functional = self.signature.functional if self.signature is not None else None
            if functional is None or isinstance(error, jax.errors.ConcretizationTypeError):
                raise
            inputs = self.inputs_of(args)
            raise cpu_error(functional, Signature(functional), inputs) or error from None

    def _metas(self, args: tuple[Any, ...]) -> Any:
        """Meta tensors for the fresh results; raises torch's own errors for bad arguments."""
        signature = self.signature
        if signature is None or signature.is_out:
            return None  # an `out=` is checked in `resized`, with the functional overload
        functional = signature.functional
        checked = functional or signature.op
        check_dtypes(checked, Signature(checked), args)
        if not self.lowering.meta:
            return None
        if not signature.written or signature.fresh:
            return call_meta(signature.op, signature, args)
        if functional is None:
            call_meta(signature.op, signature, args)
            return None
        metas = call_meta(functional, Signature(functional), args)
        outputs.check_in_place(metas, [args[i] for i in self.written])
        return None

    def prepare(self, program: Program, call: Call, operands: list[Any]) -> Program:
        """Add the views' starts and the numbers to the operands. Another program where the plans hold for no start."""
        if program.views:
            starts = program.starts_for(call.tensors, False)
            if starts is None:
                call.key.append("gather")
                return self.prepare(self.build(call, gather=True), call, operands)
            operands.append(starts)
        if call.numbers:
            if program.limits:
                check_limits(program.limits, call.numbers)
            operands += number_operands(program.number_kinds, call.numbers, program.where)
            if program.quick and len(call.numbers) == 1:
                program.remember(call.numbers[0][1], operands[-1])
        return program


def _generator_in(kinds: tuple[int, ...], args: tuple[Any, ...]) -> Any:
    for kind, a in zip(kinds, args, strict=False):
        if kind == GENERATOR:
            return a
    return None


def forget_programs() -> None:
    """Drop every operator's programs: the next call of each recompiles."""
    with build_lock:
        program_cache.clear()
