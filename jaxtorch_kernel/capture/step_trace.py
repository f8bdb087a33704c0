"""The trace of a call of a `jit` function: what the code reads, writes and creates becomes a `Step`.

Gradients are compared before and after the trace. The buffers that the code created and stored outside itself, such as
the state of an optimizer, make the step provisional: it is traced again when they exist.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection

import jax
import torch
from jax.sharding import Sharding

from ..base.torch_private import pytree
from ..programs.trees import is_device_tensor
from ..programs.untraceable import Untraceable
from ..storage.buffer import Buffer, Spec, buffer_of
from ..storage.layout import is_array
from ..storage.placement import on_mesh
from .captured import Captured, Outcome, capture
from .cpu_generators import untouched
from .dependencies.landings import Landing
from .dependencies.record import Record, recording
from .dependencies.recorder import Recorder
from .errors import CaptureError
from .gradient_changes import GradientChange
from .inputs import arguments_first
from .optimizers import Optimizers
from .reach import reachable, tensors_in_reach
from .sharing import NeedsOffset, check_parts
from .signature import Arguments
from .step import InitialValue, Step

Tensor = torch.Tensor


def trace_step(
    function: Callable[..., object],
    arguments: Arguments,
    name: str,
    donated: set[int],
    previous: Step | None = None,
    rates: bool = True,
) -> Step:
    """Trace a call for its signature.

    Args:
        donated: leaves of the call that are donated, besides those that are written.
        previous: the provisional step whose run created the state that exists now.
        rates: whether learning rates are operands, for optimizers that accept tensors.
    """
    traced_leaves = arguments.traced_leaves()
    args, kwargs = pytree.tree_unflatten(traced_leaves, arguments.structure)
    recorder = Recorder(function)
    reached = [*arguments.leaves, *reachable(function)]
    optimizers = Optimizers(recorder, rates, reached)
    before = recorder.gradients
    for tensor in tensors_in_reach(function, arguments.leaves):
        if tensor.is_leaf:
            before[id(tensor)] = weakref.ref(tensor), tensor.grad
    try:
        with recording(recorder), optimizers.prepared(), untouched(reached, recorder):
            captured, outcome = capture(
                lambda: recorder.run(args, kwargs),
                False,
                before,
                known=lambda: [*arguments.known(traced_leaves), *recorder.notes.known()],
                held=recorder.effects.stored_tensors,
                fresh=lambda: recorder.fresh,
            )
            optimizers.check(outcome.written)
            record = Record(recorder, outcome.trace.created_here, captured.leaves, captured.escaped)
            if recorder.uses_gradients():
                record.tie(arguments.caller_leaves, recorder)
            state = [] if previous is None else previous.state_buffers()
            step = _step(arguments, captured, outcome, record, optimizers, recorder, name, state)
            if step.provisional and previous is not None:
                creates_state = any(map(outcome.trace.is_state, step.state_buffers()))
                if not (creates_state and optimizers.state_only_grew()):
                    step.settle(creates_state)
            step.prepare(donated)
    except (CaptureError, Untraceable, jax.errors.ConcretizationTypeError) as error:
        if not optimizers.rates or isinstance(error, NeedsOffset):
            raise
    else:
        return step
    return trace_step(function, arguments, name, donated, previous, rates=False)


def _step(
    arguments: Arguments,
    captured: Captured,
    outcome: Outcome,
    record: Record,
    optimizers: Optimizers,
    recorder: Recorder,
    name: str,
    state: Collection[Buffer],
) -> Step:
    before = recorder.gradients
    # A leaf that the code created, over memory from outside, no longer exists.
    leaves_of = {key: t for key, (leaf, _) in before.items() if (t := leaf()) is not None}
    after = {key: leaf.grad for key, leaf in leaves_of.items()}
    recorder.restore_gradients()  # the step reads the buffers of the old gradients
    for rate in optimizers.rates:
        record.labels.add_rate(rate.optimizer(), rate.index, rate.buffer)
    captured, indices, created = arguments_first(
        captured, arguments, record, outcome.trace.created_here, state
    )
    initial = [InitialValue(weakref.ref(buffer), buffer.array) for buffer in created]
    check_parts(arguments, captured.buffers, indices, captured.written)
    arguments.check_written({indices[i] for i in captured.written if i < len(indices)})
    step = Step(captured, indices, record, initial, name)
    step.optimizers = optimizers
    step.again += optimizers.repeats()
    step.created = [_alive(reference) for reference, _ in captured.escaped]
    _add_gradients(step, arguments, record, recorder, leaves_of, after)
    landed = {landing.output for landing in step.landings}
    for buffer, (_, spec) in zip(step.created, captured.escaped, strict=True):
        buffer.spec = spec
    # A tensor that each run creates again from its initial value is not lasting state.
    recreated = {id(step.created[i]) for i in landed}
    lasting = [value for value in initial if id(value.buffer()) not in recreated]
    step.provisional = bool(lasting) or len(landed) < len(captured.escaped)
    record.forget()
    return step


def _add_gradients(
    step: Step,
    arguments: Arguments,
    record: Record,
    recorder: Recorder,
    leaves_of: dict[int, Tensor],
    after: dict[int, Tensor | None],
) -> None:
    """Note what the code did to the gradients of leaves: set, removed, exchanged, or depended on.

    Args:
        leaves_of, after: the leaves and their gradients when the code had run, by the identity of the leaf.
    """
    escaped = step.captured.escaped
    created_by_code = set(map(id, step.created))
    argument = {id(t): i for i, t in enumerate(arguments.caller_leaves) if isinstance(t, Tensor)}
    for key, leaf in leaves_of.items():
        gradient, new = recorder.gradients[key][1], after[key]
        is_new = new is not gradient and new is not None and id(buffer_of(new)) in created_by_code
        if new is gradient and not (
            leaf.requires_grad
            and (gradient is not None or step.optimizers.used or recorder.uses_gradients())
        ):
            continue
        discarded = recorder.discards_gradient(leaf, gradient)
        grad = GradientChange(leaf, gradient, new, is_new, discarded)
        if key in argument and key not in recorder.tensors and gradient is None and not grad.hooks:
            record.bare.append(argument[key])
            step.gradients_of_arguments[argument[key]] = grad
        else:
            step.gradients.append(grad)
            if key in argument:
                record.tied.append((argument[key], grad.leaf))
        if is_new and new is not None:
            landing = Landing(grad.set, new, escaped)
            step.landings.append(landing)
            if (where := _like(leaf, landing.spec)) is not None:
                step.captured.gradients[landing.output] = where


def _like(leaf: Tensor, gradient: Spec) -> Sharding | None:
    """The sharding of a new gradient: that of its leaf, if the leaf is on a mesh."""
    if not (is_device_tensor(leaf) and is_array(leaf)):
        return None
    spec = buffer_of(leaf).spec
    return spec.placement if on_mesh(spec.placement) and spec.shape == gradient.shape else None


def _alive(reference: weakref.ref[Buffer]) -> Buffer:
    buffer = reference()
    assert buffer is not None  # it escaped: something outside the code refers to it
    return buffer
