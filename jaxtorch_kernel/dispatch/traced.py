"""A call inside a trace: the program's function, inlined over tracers.

These are the same programs as in eager mode, so everything that works eagerly can be captured. Three things differ:
cells are read through the `Trace`, which turns each into an input; a tensor that needs no gradient is a constant to
`jax.vjp`; and a call that depends on no input runs immediately, on values.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import torch

from ..base import torch_private as private
from ..programs.tracing import Trace
from . import pausing
from .call import Call
from .numbers import check_limits, number_operands
from .results import results_of

if TYPE_CHECKING:
    from .operation import Operation
    from .program import Program


def run_traced(operation: Operation, call: Call, trace: Trace) -> Any:
    """The call over tracers; see the module's text."""
    hook = pausing.pause()
    try:
        return _run_traced(operation, call, trace)
    finally:
        pausing.resume(hook)


def _run_traced(operation: Operation, call: Call, trace: Trace) -> Any:
    if trace.eager and not operation.lowering.random and all(map(trace.is_fresh, call.buffers)):
        return _run_fresh(operation, call, trace)
    program = operation.lookup(call)
    if program is None:
        if operation.resized(call):
            return operation(*call.args)
        program = operation.build(call)
    source = None
    operands = _operands(program, call, trace)
    if operation.lowering.random:
        source = operation.random_key(call, program)
        operands.insert(0, trace.read(source))
    if program.views:
        starts = program.starts_for(call.tensors, True)
        if starts is None:
            call.key.append("gather")
            program = operation.build(call, gather=True)
            starts = program.starts_for(call.tensors, True) if program.views else None
        if starts is not None:
            operands.append(starts)
    scopes = trace.root.scopes
    named = scopes.of_call() if scopes is not None else nullcontext()
    if program.limits:
        check_limits(program.limits, call.numbers)
    with jax.enable_x64(True), named:
        numbers = number_operands(program.number_kinds, call.numbers, None)
        outputs = program.function(*operands, *numbers)
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
    results = _born(results_of(program, outputs, call.tensors), call, trace)
    if active:
        for t in (*_tensors(results), *(call.tensors[i] for i in program.targets)):
            trace.add_active(t)
    return results


def _run_fresh(operation: Operation, call: Call, trace: Trace) -> Any:
    """A call that depends on no input, on values: what it makes is a constant of the trace."""
    before = [buffer.array for buffer in call.buffers]
    # In the open trace the copy of an array that is to be written and was read already would be a tracer.
    with torch.no_grad(), jax.ensure_compile_time_eval():
        results = operation.run_now(call)
    for buffer, array in zip(call.buffers, before, strict=True):
        if buffer.array is not array:
            _forget(buffer, trace.root)
    return _born(results, call, trace)


def _forget(cell: Any, trace: Trace) -> None:
    """Turn the value that was read from a cell into a separate constant: from now on the cell holds another value."""
    place = trace.constant_index.pop(id(cell), None)
    if place is not None and trace.captured[place][0]() is cell:
        trace.captured[place] = (lambda: None), trace.captured[place][1]


def _operands(program: Program, call: Call, trace: Trace) -> list[Any]:
    """The inputs of the program, one for each distinct buffer."""
    operands = []
    for position, first in enumerate(program.unique):
        array = trace.read(call.buffers[first])
        trace.read_buffers.add(id(call.buffers[first]))
        readers = [
            t for t, o in zip(call.tensors, program.operand_of, strict=True) if o == position
        ]
        if trace.differentiable and all(map(trace.is_constant, readers)):
            array = jax.lax.stop_gradient(array)
        operands.append(array)
    for t in call.tensors:
        if t.requires_grad:
            if not trace.created(t.untyped_storage().buffer):  # type: ignore[attr-defined]
                if t.is_leaf:
                    trace.root.gradients.setdefault(id(t), (weakref.ref(t), t.grad))
                elif private.sequence_number(t.grad_fn) < trace.root.first_node:
                    trace.root.outer.setdefault((t.grad_fn, t.output_nr), t)
            if not trace.is_constant(t):
                trace.add_reader(t)
    return operands


def _write(program: Program, call: Call, outputs: Any, trace: Trace) -> None:
    first = len(outputs) - len(program.targets)
    for i, array, spec in zip(program.targets, outputs[first:], program.new_specs, strict=False):
        trace.touch(call.buffers[i])
        trace.note_writer(call.buffers[i])
        call.buffers[i].write(array, spec)


def _born(results: Any, call: Call, trace: Trace) -> Any:
    """Note the buffers that a call made."""
    known = {id(b) for b in call.buffers}
    for t in _tensors(results):
        buffer = t.untyped_storage().buffer  # type: ignore[attr-defined]  # a result of ours has one
        if id(buffer) not in known:
            trace.add_created(buffer)
    return results


def _tensors(results: Any) -> list[torch.Tensor]:
    results = results if isinstance(results, list | tuple) else (results,)
    return [t for t in results if isinstance(t, torch.Tensor)]
