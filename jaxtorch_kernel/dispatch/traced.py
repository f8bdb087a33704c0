"""A call inside a trace: the program's function, inlined over tracers.

These are the same programs as in eager mode, so everything that works eagerly can be captured. Three things differ:
buffers are read through the `Trace`, which turns each into an input; a tensor that needs no gradient is a constant to
`jax.vjp`; and a call that depends on no input runs immediately, on values.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import jax
import torch

from ..base import torch_private as private
from ..programs import tracing
from ..programs.tracing import Trace
from ..storage.buffer import Buffer, buffer_of
from . import pausing
from .call import Call
from .numbers import check_bounds, number_constants
from .operands import Operand
from .running import random_key

if TYPE_CHECKING:
    from .operation import Operation
    from .program import Program


def run_traced(operation: Operation, call: Call, trace: Trace) -> object:
    """The call over tracers. No function that it runs is recorded as read by the user's code."""
    hook = pausing.pause()
    try:
        return _run_traced(operation, call, trace)
    finally:
        pausing.resume(hook)


def _run_traced(operation: Operation, call: Call, trace: Trace) -> object:
    if trace.eager and not operation.lowering.random:
        if all(map(trace.is_fresh, call.buffers)):
            return _run_fresh(operation, call, trace)
        if operation.lowering.modeled and trace.root.creates_state:
            with tracing.outside():
                if not any(map(_is_tracer, call.buffers)):
                    return _run_fresh(operation, call, trace)
    program = operation.find(call)
    if program is None:
        if operation.builder.fit_targets(call):
            return operation(*call.args)
        program = operation.program(call)
    source = None
    operands = _operands(program, call, trace)
    if operation.lowering.random:
        source = random_key(operation.kinds, call, program)
        operands.insert(0, trace.read(source))
    if program.operands.views:
        starts = _starts(program, call)
        if starts is None:
            call.key.append("gather")
            program = operation.program(call, gather=True)
            starts = _starts(program, call)
        if starts is not None:
            operands.append(starts)
    scopes = trace.root.scopes
    named = scopes.of_call() if scopes is not None else nullcontext()
    check_bounds(program.template.bounds, call.numbers)
    with jax.enable_x64(True), named:
        numbers = number_constants(program.operands.number_kinds, call.numbers)
        outputs = program.inner_function(*operands, *numbers)
    if source is not None:
        trace.touch(source)
        source.array = outputs[-1]
        outputs = outputs[:-1]
    active = (
        trace.differentiable
        and torch.is_grad_enabled()
        and not all(map(trace.is_constant, call.tensors))
    )
    _write(program, call, outputs, trace)
    results = _note_made(program.results.wrap(outputs, call.tensors), call, trace)
    if active:
        for t in (*_tensors(results), *(call.tensors[i] for i in program.targets)):
            trace.add_active(t)
    return results


def _run_fresh(operation: Operation, call: Call, trace: Trace) -> object:
    """A call that depends on no input, run on values: its results are constants of the trace."""
    before = [buffer.array for buffer in call.buffers]
    # A write may first copy an array that was read before. In the open trace the copy would be a tracer.
    with torch.no_grad(), jax.ensure_compile_time_eval():
        results = operation.run(call)
    for buffer, array in zip(call.buffers, before, strict=True):
        if buffer.array is not array:
            _forget(buffer, trace.root)
    return _note_made(results, call, trace)


def _is_tracer(buffer: Buffer) -> bool:
    return isinstance(buffer.array, jax.core.Tracer)


def _forget(buffer: Buffer, trace: Trace) -> None:
    """Make the value that was read from a buffer a separate constant: from now on the buffer holds another value."""
    index = trace.constant_index.pop(id(buffer), None)
    if index is not None and trace.captured[index][0]() is buffer:
        trace.captured[index] = (lambda: None), trace.captured[index][1]


def _operands(program: Program, call: Call, trace: Trace) -> list[Operand]:
    """The inputs of the program, one for each distinct buffer."""
    operands: list[Operand] = []
    for i, first in enumerate(program.operands.unique):
        array = trace.read(call.buffers[first])
        trace.read_buffers.add(id(call.buffers[first]))
        readers = [
            t for t, o in zip(call.tensors, program.operands.operand_of, strict=True) if o == i
        ]
        if trace.differentiable and all(map(trace.is_constant, readers)):
            array = jax.lax.stop_gradient(array)
        operands.append(array)
    for t in call.tensors:
        if t.requires_grad:
            if not trace.created(buffer_of(t)):
                node = t.grad_fn
                if node is None:
                    trace.root.gradients.setdefault(id(t), (weakref.ref(t), t.grad))
                elif private.sequence_number(node) < trace.root.first_node:
                    trace.root.outer.setdefault((node, t.output_nr), t)
            if not trace.is_constant(t):
                trace.add_reader(t)
    return operands


def _starts(program: Program, call: Call) -> Operand | None:
    inputs = program.operands
    return inputs.new_starts(inputs.offsets(call.tensors)) if inputs.views else None


def _write(program: Program, call: Call, outputs: Sequence[jax.Array], trace: Trace) -> None:
    first = len(outputs) - len(program.targets)
    for i, array, spec in zip(program.targets, outputs[first:], program.new_specs, strict=False):
        trace.touch(call.buffers[i])
        trace.note_writer(call.buffers[i])
        call.buffers[i].write(array, spec)


def _note_made(results: object, call: Call, trace: Trace) -> object:
    """Tell the trace which buffers a call made; returns the results."""
    known = {id(b) for b in call.buffers}
    for t in _tensors(results):
        buffer = buffer_of(t)
        if id(buffer) not in known:
            trace.add_created(buffer)
    return results


def _tensors(results: object) -> list[torch.Tensor]:
    leaves = results if isinstance(results, list | tuple) else (results,)
    return [t for t in leaves if isinstance(t, torch.Tensor)]
