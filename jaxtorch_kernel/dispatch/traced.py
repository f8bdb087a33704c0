"""A call inside a trace: the program's function, inlined over tracers.

These are the same programs as in eager mode, so everything that works eagerly can be captured. Three things differ:
buffers are read through the `Trace`, which turns each into an input; a tensor that needs no gradient is a constant to
`jax.vjp`; and a call that depends on no input runs immediately, on values. It does not if its result is large: the mask
of a whole batch takes a few instructions in a program, and gigabytes as a constant.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import jax
import numpy as np
import torch

from ..base import torch_private as private
from ..programs import tracing
from ..programs.tracing import Trace
from ..storage.buffer import Buffer, buffer_of
from ..storage.hollow import hollow_tensor, is_hollow
from . import pausing
from .call import Call
from .meta import call_meta
from .numbers import check_bounds, number_constants
from .operands import Operand
from .running import random_key

if TYPE_CHECKING:
    from .operation import Operation
    from .program import Program


_LARGEST_CONSTANT = 1 << 26  # bytes


def run_traced(operation: Operation, call: Call, trace: Trace) -> object:
    """The call over tracers. No function that it runs is recorded as read by the user's code."""
    hook = pausing.pause()
    try:
        return _run_traced(operation, call, trace)
    finally:
        pausing.resume(hook)


def _run_traced(operation: Operation, call: Call, trace: Trace) -> object:
    if trace.eager and not operation.lowering.random:
        results = _run_on_values(operation, call, trace)
        if results is not NotImplemented:
            return results
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
    starts = None
    if program.operands.views:
        starts = _starts(program, call)
        if starts is None:
            call.key.append("gather")
            program = operation.program(call, gather=True)
            starts = _starts(program, call)
    scopes = trace.root.scopes
    named = scopes.of_call() if scopes is not None else nullcontext()
    check_bounds(program.template.bounds, call.numbers)
    with jax.enable_x64(True), named:
        constants = number_constants(program.operands.number_kinds, call.numbers)
        if starts is not None:
            constants.insert(0, starts)
        outputs = program.in_trace(operands, constants)
    if source is not None:
        trace.touch(source)
        source.array = outputs[-1]
        outputs = outputs[:-1]
    active = (
        trace.differentiable
        and torch.is_grad_enabled()
        and not all(map(trace.active.is_constant, call.tensors))
    )
    _write(program, call, outputs, trace)
    results = _note_made(program.results.wrap(outputs, call.tensors), call, trace)
    if active:
        for t in (*_tensors(results), *(call.tensors[i] for i in program.targets)):
            trace.active.add(t)
    return results


def _run_on_values(operation: Operation, call: Call, trace: Trace) -> object:
    """The results of a call that is not part of the program; NotImplemented if it is.

    Such a call depends on no input and has a small result, or creates the state of an optimizer.
    """
    fresh = all(map(trace.is_fresh, call.buffers)) and not any(map(_is_hollow, call.buffers))
    if fresh and not _is_large(operation, call):
        return _run_fresh(operation, call, trace)
    if not (operation.lowering.modeled and trace.root.creates_state):
        return NotImplemented
    with tracing.outside():
        hollow = _is_hollow(call.buffers[0])
        if not any(map(_is_tracer, call.buffers)) and not hollow:
            return _run_fresh(operation, call, trace)
    if not hollow and _is_tracer(call.buffers[0]):  # such as a gradient
        hollow = any(is_hollow(constant) for _, constant in trace.root.captured)
        if not hollow and not any(map(_is_tracer, call.buffers[1:])):
            return _note_made(_run_like(operation, call), call, trace)
    return _note_made(_hollow_like(operation, call), call, trace) if hollow else NotImplemented


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


def _is_large(operation: Operation, call: Call) -> bool:
    """Whether a result takes more memory than a constant of a program should."""
    op, signature = operation.op, operation.signature
    meta = None if op is None else call_meta(op, signature, tuple(signature.complete(call.args)))
    return any(t.nbytes > _LARGEST_CONSTANT for t in _tensors(meta))


def _run_like(operation: Operation, call: Call) -> object:
    """The state that an optimizer creates after a tensor without a value, run after one of zeros."""
    like = call.tensors[0]
    with torch.no_grad(), tracing.outside():
        zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        return operation(zeros, *call.args[1:])


def _hollow_like(operation: Operation, call: Call) -> torch.Tensor:
    """The state that an optimizer creates for a hollow parameter (`zeros_like`)."""
    op, signature = operation.op, operation.signature
    assert op is not None
    meta = call_meta(op, signature, tuple(signature.complete(call.args)))
    assert meta is not None
    return hollow_tensor(meta.shape, meta.dtype)


def _is_hollow(buffer: Buffer) -> bool:
    return is_hollow(buffer.array)


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
        if trace.differentiable and all(map(trace.active.is_constant, readers)):
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
                elif t._base is not None and t._base.is_leaf:  # a view that the code made of a leaf
                    trace.root.gradients.setdefault(
                        id(t._base), (weakref.ref(t._base), t._base.grad)
                    )
            if not trace.active.is_constant(t):
                trace.add_reader(t)
    return operands


def _starts(program: Program, call: Call) -> np.ndarray | None:
    inputs = program.operands
    return inputs.new_starts(inputs.offsets(call.tensors)) if inputs.views else None


def _write(program: Program, call: Call, outputs: Sequence[jax.Array], trace: Trace) -> None:
    first = len(outputs) - len(program.targets)
    for i, array, spec in zip(program.targets, outputs[first:], program.new_specs, strict=False):
        trace.touch(call.buffers[i])
        trace.note_writer(call.buffers[i])
        call.buffers[i].write(array, spec)


def _note_made(results: object, call: Call, trace: Trace) -> object:
    """Report the buffers that a call made to the trace; returns the results."""
    known = {id(b) for b in call.buffers}
    for t in _tensors(results):
        buffer = buffer_of(t)
        if id(buffer) not in known:
            trace.add_created(buffer)
    return results


def _tensors(results: object) -> list[torch.Tensor]:
    leaves = results if isinstance(results, list | tuple) else (results,)
    return [t for t in leaves if isinstance(t, torch.Tensor)]
