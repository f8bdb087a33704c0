"""Running a program on the values of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax

from ..base.jax_private import FAILURES
from ..programs import rng, watching
from ..programs.atomic import ensure_unshared, kept_if_checked, receiver, run_into, was_replaced
from ..programs.errors import explain_call
from ..programs.site import origin
from ..programs.writes import DONATED_ERRORS
from ..storage import placement
from ..storage.buffer import Buffer
from . import executable
from .call import Call
from .operands import Operand
from .program import Program
from .schema import GENERATOR

if TYPE_CHECKING:
    from .operation import Operation


def run_plain(operation: Operation, program: Program, call: Call) -> object:
    """A call that only returns new tensors."""
    operands: list[Operand] = [b.array for b in call.buffers]
    if program.constant is not None and any(isinstance(a, jax.core.Tracer) for a in operands):
        # An optimizer makes its state outside of the trace, like a gradient in it (Rprop's `full_like`).
        return program.results.wrap([program.constant.transferred(call.numbers)], call.tensors)
    program.operands.move(operands)
    program = with_operands(operation, program, call, operands)
    execute = program.ready()
    watching.launching(program.executable.record)
    try:
        outputs = execute(*operands)
    except DONATED_ERRORS as error:
        if was_replaced(call.buffers, operands):
            return operation.run(call)
        if not isinstance(error, FAILURES):
            raise
        raise explain_call(error, program.name, call.buffers) from None
    return program.results.wrap(outputs, call.tensors)


def run_special(operation: Operation, program: Program, call: Call) -> object:
    """A call that writes, draws random numbers, or has no tensor that determines its sharding."""
    program, targets, sources, operands = prepared(operation, program, call)
    try:
        if program.lowering.random:
            with random_key(operation.kinds, call, program).drawing() as drawn:
                key = drawn
                if program.operands.on_mesh:
                    key = placement.moved(key, program.operands.sharding)
                leading = [key] if program.noise is None else program.noise.blocks(key)
                outputs = _run_into(program, call, [*leading, *operands], targets)
        else:
            outputs = _run_into(program, call, operands, targets)
    except DONATED_ERRORS:
        if not was_replaced(sources, operands):
            raise
        return run_special(operation, program, call)
    for buffer in targets:
        buffer.origin = origin(program.origin)
        if watching.watcher is not None:
            watching.watcher.add_result(buffer)
    return program.results.wrap(outputs, call.tensors)


def prepared(
    operation: Operation, program: Program, call: Call
) -> tuple[Program, list[Buffer], list[Buffer], list[Operand]]:
    """The program to run, the buffers that it writes, the buffers that it reads, and its operands.

    An array that is about to be donated is copied first if something else holds it.
    """
    targets = [call.buffers[i] for i in program.targets]
    for buffer in targets:
        ensure_unshared(buffer)
    sources = [call.buffers[i] for i in program.operands.unique]
    operands: list[Operand] = [buffer.array for buffer in sources]
    program.operands.move(operands)
    return with_operands(operation, program, call, operands), targets, sources, operands


def random_key(kinds: Sequence[int], call: Call, program: Program) -> rng.RandomKey:
    """The random key of a call: that of its generator argument, or the device's."""
    generators = (a for kind, a in zip(kinds, call.args, strict=False) if kind == GENERATOR)
    where = program.operands.sharding
    if program.operands.on_mesh:  # the numbers are those of one device
        where = placement.current()
    return rng.key_for(next(generators, None), where)


def with_operands(
    operation: Operation, program: Program, call: Call, operands: list[Operand]
) -> Program:
    """Add the views' starts and the numbers to the operands; returns the program to run.

    It is another program if a plan of this one does not apply to an offset.
    """
    inputs = program.operands
    if not (inputs.views or call.numbers):
        return program
    if not inputs.add(operands, call.tensors, call.numbers, program.template):
        call.key.append("gather")
        return with_operands(operation, operation.program(call, gather=True), call, operands)
    if program.quick and call.numbers:
        inputs.remember(call.numbers, operands)
    return program


def _run_into(
    program: Program, call: Call, operands: list[Operand], targets: list[Buffer]
) -> list[jax.Array]:
    """Run the program and store its outputs in the buffers that it writes; returns the new results.

    The specs are set before the run, and restored if it does not happen (`programs/atomic.py`).
    """
    execute = program.ready()
    record = program.executable.record
    watching.launching(record)
    fresh = [receiver() for leaf in program.results.leaves if leaf is not None]
    # The next random key comes last. It is dropped: it is lost if the program fails (`rng.RandomKey.drawing`).
    dropped = [receiver()] if program.takes_key else []
    old = [(b, b.array, b.spec) for b in targets]
    try:
        for buffer, spec in zip(targets, program.new_specs, strict=True):
            buffer.spec = spec
        kept = kept_if_checked(operands, program.operands.donated())
        run_into(execute, kept, [*fresh, *targets, *dropped])
        if targets and executable.counting and record is not None:
            record.calls += 1
    except FAILURES as error:
        raise explain_call(error, program.name, call.buffers) from None
    finally:
        for buffer, array, spec in old:
            if buffer.array is array:
                buffer.spec = spec
    return [b.array for b in fresh]
