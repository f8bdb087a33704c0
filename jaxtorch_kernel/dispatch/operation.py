"""One operator on the device: its programs by key, and every call outside the hot path (`hot.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..base.torch_private import OpOverload
from ..lowerings.registry import Lowering
from ..lowerings.value_checks import CHECKS
from ..programs import program_cache, tracing
from ..programs.program_cache import ProgramCache
from ..programs.site import printing
from ..storage import placement
from . import deferring, overlap
from .building import Builder
from .call import Call, describe, first_positions, kind_by_value
from .cpu import on_cpu
from .cpu_errors import argument_checks
from .executable import build_lock
from .filling import Constant, filling_of
from .hot import hot_path
from .parts import Divisions, Part, run_parts
from .program import Program
from .running import run_plain, run_special
from .schema import FLAG, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS, Arguments, Signature, short_name
from .targets import Type
from .traced import run_traced
from .value_checks import ValueChecks


class Typed(Protocol):
    """The object that runs an overload: an `Operation`, or a `Decomposed` operator."""

    def result_types(self, args: Sequence[object]) -> list[Type]:
        """Size and dtype of each result of a functional call, without running it."""


class Operation:
    """An operator overload and its lowering, callable with the operator's arguments.

    Args:
        op: the overload, or None for a JAX function that is not an operator of torch (then `name` is its name).
        lowering: its JAX function.
        operation_of: gives the operation of another overload, for an `out=` overload's functional one.
        copy_cpu: whether to copy CPU tensors with dimensions to the device (indices, as on cuda).
        checked: whether to check arguments that Meta kernels do not check. Off for an operation that is such a check.
        constant: the value of all elements of the result, for a JAX function that returns such an array.

    Attributes:
        programs: the programs, by the key of the call.
        ready: those that the hot path reads.
        numeric: indices of the arguments for which a number is an operand.
        is_factory: an operator that takes no tensor.
        special: calls write, draw random numbers, or may have no tensor that determines their sharding.
        is_general: no call is one of those that the hot path takes (`hot.py`).
        kernel: the function that torch calls.
    """

    def __init__(
        self,
        op: OpOverload | None,
        lowering: Lowering,
        operation_of: Callable[[OpOverload], Typed] | None = None,
        name: str = "",
        copy_cpu: bool = False,
        checked: bool = True,
        constant: int | None = None,
    ):
        self.op = op
        self.lowering = lowering
        self.signature = Signature(op)
        self.name = name or (short_name(op) if op is not None else "")
        self.copy_cpu = copy_cpu
        self.kinds = _kinds(self.signature, lowering)
        self.programs = ProgramCache()
        self.ready = self.programs.ready
        self.numeric = frozenset(i for i, kind in enumerate(self.kinds) if kind <= NUMBER)
        no_tensor = TENSOR not in self.kinds and TENSORS not in self.kinds
        self.is_factory = op is not None and no_tensor
        self.special = bool(self.signature.written) or lowering.random or no_tensor
        # For an argument that is a list, the hot path would catch an exception in vain at each call (2 us).
        self.is_general = self.special or not self.signature.required_kinds <= {TENSOR, NUMBER}

        def result_types(functional: OpOverload, args: Sequence[object]) -> list[Type]:
            assert operation_of is not None
            return operation_of(functional).result_types(args)

        self.builder = Builder(op, self.signature, lowering, self.name, self.kinds, result_types)
        self._divisions = Divisions(self) if _is_divisible(self.signature, lowering) else None
        self._argument_checks = argument_checks(op, self.signature) if checked else None
        self._overlap_checks = overlap.OverlapChecks()
        self._filling = filling_of(op, self.signature)
        self._constant = constant
        self._value_checks = self._checks_of_values() if checked else None
        self.kernel = hot_path(lambda: self)

    def _checks_of_values(self) -> ValueChecks | None:
        functional = self.signature.functional
        if functional is None or short_name(functional) not in CHECKS:
            return None

        def make(op: OpOverload, lowering: Lowering) -> Operation:
            name = f"check of {self.name}"
            return Operation(op, lowering, name=name, copy_cpu=self.copy_cpu, checked=False)

        return ValueChecks(functional, make)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.kernel(*args, **kwargs)

    def general(self, *args: object, **kwargs: object) -> object:
        """Any call: with numbers, views or keywords, on a cache miss, inside a trace."""
        if kwargs:
            args = self.signature.complete(args, kwargs)
        call = self._described(args)
        if self._argument_checks is not None:
            self._argument_checks.check(call)
        checks = self._value_checks
        if checks is not None and checks.wanted(call.key[0]):
            checks.check(self.signature.inputs(call.args))
        if tracing.depth and (trace := tracing.current()) is not None:
            return run_traced(self, call, trace)
        return self.run(call)

    def run(self, call: Call) -> object:
        """The call on values."""
        if self._divisions is not None and (parts := self._divisions.find(call)):
            return run_parts(self, self._divisions, parts, call)
        program = self.find(call)
        if program is None:
            if self.op is not None and printing():
                # torch formats a tensor: not worth a compilation, nor a warning.
                return on_cpu(self.op, self.signature, call.args, {}, announce=False)
            recording = deferring.recorder is not None and not tracing.depth
            if self._filling and not recording and (filled := self._filling.run(call)) is not None:
                return filled
            if self.builder.fit_targets(call):
                return self(*call.args)
            program = self.program(call)
        return self.run_program(program, call)

    def run_program(self, program: Program, call: Call) -> object:
        """Record or run the program of a call."""
        recorder = deferring.recorder
        if recorder is not None:
            result = recorder.call(self, program, call)
            if result is not NotImplemented:
                return result
        return (run_special if self.special else run_plain)(self, program, call)

    def find(self, call: Call) -> Program | None:
        """The program of a call, if it was built before. Completes the call's key."""
        self.complete_key(call)
        return self.programs.find(tuple(call.key))

    def program_of(self, args: Arguments) -> Program | None:
        """The program of a call, if it was built before."""
        return self.find(self._described(args))

    def parts_of(self, args: Arguments) -> list[Part]:
        """The parts of a call over long lists; none if it is one program."""
        return [] if self._divisions is None else self._divisions.find(self._described(args))

    def program_of_part(self, part: Part) -> Program | None:
        """The program of a part, if it was built before."""
        return self.programs.find(part.key)

    def complete_key(self, call: Call) -> None:
        """Complete a key: how the tensors of a call that writes share memory, and the device of a call without tensors.

        Raises:
            Whatever torch raises for tensors that overlap.
        """
        key, buffers = call.key, call.buffers
        if self.signature.written and len(buffers) > 1:
            first = first_positions(buffers)
            key.append(tuple(first))
            if len(set(first)) < len(first):
                assert self.op is not None
                self._overlap_checks.check(self.op, self.signature, call)
        if self.lowering.random or not buffers:
            key.append(placement.current())

    def program(self, call: Call, gather: bool = False) -> Program:
        """The program of a call with a complete key; builds it if there is none."""
        with build_lock:
            key = tuple(call.key)
            program = self.programs.find(key)
            if program is None:
                program = self._built(call, gather)
                self.programs.add(key, program)
            return program

    def _built(self, call: Call, gather: bool = False) -> Program:
        program = self.builder.build(call, gather)
        checks = self._value_checks
        if checks is None or not checks.wanted_eagerly(call.key[0]):
            by_cpu = self._argument_checks is not None and self._argument_checks.may_fail(call)
            program.allow_hot_paths(checks_numbers=by_cpu)
        if self._constant is not None:
            program.constant = Constant(program.result_specs()[0], self._constant)
        elif self._filling:
            program.constant = self._filling.constant(call, program.result_specs())
        return program

    def result_types(self, args: Sequence[object]) -> list[Type]:
        """Size and dtype of each result of a functional call, without running it."""
        call = self._described(tuple(args))
        with build_lock:
            program = self.programs.find(tuple(call.key)) or self._built(call)
        return [(leaf.size, leaf.dtype) for leaf in program.results.leaves if leaf is not None]

    def _described(self, args: Arguments) -> Call:
        return describe(args, self.kinds or map(kind_by_value, args), self.name, self.copy_cpu)


def _is_divisible(signature: Signature, lowering: Lowering) -> bool:
    """Whether parts of long lists may run as calls of their own: each position is written, or has one result."""
    if not lowering.by_position or signature.is_out:
        return False
    if signature.written:
        return not signature.returns_list
    return signature.returns_list == (True,)


def _kinds(signature: Signature, lowering: Lowering) -> tuple[int, ...]:
    """The kinds of the arguments. A number that the lowering needs as a value is static."""
    return tuple(
        STATIC
        if kind in (NUMBER, NUMBERS) and (lowering.decomposed or name in lowering.static)
        else FLAG
        if name in lowering.flags
        else kind
        for kind, name in zip(signature.kinds, signature.names, strict=True)
    )


def forget_programs() -> None:
    """Drop every operator's programs: the next call of each recompiles."""
    if deferring.recorder is not None:
        deferring.recorder.clear_cache()
    with build_lock:
        program_cache.clear()
