"""Traces: torch code run over tracers instead of values.

Tracing is substitution. While a trace is open, reading a buffer returns a tracer in place of its array. The torch code
runs unchanged, and every alias sees the tracer, because all aliases share the buffer. Random keys are buffers too. Only
the tracing thread sees the tracer: the trace stores it, and the buffer itself keeps its array, which other threads
continue to read and write (`traced_buffer.py`). When the trace closes, its tracers are dropped.

A `Trace` records, for one such run:

* **captured** buffers, which existed before and were read. Their array becomes a constant of the jaxpr, compared by
  identity: `capture/` finds this constant again and turns it into an input;
* **written** buffers, which are captured buffers that hold a different tracer at the end;
* **new** buffers, which were created inside. A new buffer that depends on no input (`zeros`, and values computed from
  it) stays concrete, so that optimizer state created in the first step exists after the trace.

Traces nest (the body of a scan inside a captured function); a nested trace shares the captures of the outermost one.
`tracing(trace)` is the only way to open one. The contexts that the code needs depend on its kind, so the class of the
trace lists them (`Trace.contexts`).

`depth` is a plain integer for the whole process, so the hot path checks one attribute. While it is above zero, a
kernel also checks whether the trace belongs to its own thread: eager work in other threads continues.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..base import torch_private as private
from ..storage import pending
from ..storage.buffer import Buffer, Spec, buffer_of
from ..storage.hollow import is_hollow
from ..storage.placement import another
from . import traced_buffer
from .active_tensors import ActiveTensors
from .site import line_of, origin
from .traced_buffer import TracedBuffer
from .trees import is_device_tensor
from .writes import DONATED_ERRORS, is_deleted, is_replaced

Node = torch.autograd.graph.Node
Tensor = torch.Tensor
_YOUNG, _ALL = 1, 2  # generations of the garbage collector

depth = 0
_thread = traced_buffer.thread
_lock = threading.Lock()  # guards `depth`: `+=` is not atomic among threads


class Trace:
    """The record of one run over tracers; the module docstring explains its parts.

    Buffers are referenced weakly wherever the trace looks at the end which of them the code still holds.

    Args:
        differentiable: `jax.vjp` will run through what is traced, so that a tensor that needs no gradient is read
            as a constant (`lax.stop_gradient`).
        eager: run operators that depend on no input immediately, on values.
    """

    lingers = False  # whether no block of code shows its end (`linger`)
    end: Callable[[], None]  # of a trace that lingers: closes it

    def __init__(self, differentiable: bool = False, eager: bool = False):
        self.differentiable = differentiable
        self.eager = eager
        self.parent: Trace | None = None
        # Called when the trace closes, the last first: they put back what an error left in place.
        self.at_end: list[Callable[[], None]] = []
        # Tensors that stand in modules for parameters while code runs, with these parameters (outermost only).
        self.stand_ins: WeakIdKeyDictionary = WeakIdKeyDictionary()
        # Errors about code that cannot be captured; the code may have caught them (outermost only).
        self.refusals: list[BaseException] = []
        # By the id of a buffer that this trace touched: its value here.
        self.locals: dict[int, TracedBuffer] = {}
        # Captured buffers, each with its constant (outermost only).
        self.captured: list[tuple[Callable[[], Buffer | None], jax.Array]] = []
        self.constant_index: dict[int, int] = {}  # id of a buffer -> its index in `captured`
        self.read_buffers: set[int] = set()  # ids of the buffers that an operator has read
        self.new_buffers: dict[int, weakref.ref[Buffer]] = {}
        # Whether a buffer is the state of an optimizer that steps here. If the trace created it, its initial value
        # is an input from the first operator that takes it, as it is once the state exists (outermost only).
        self.is_state: Callable[[Buffer], bool] = _never
        # By the identity of its constant: the tracer that reads of a fresh buffer return.
        self.fresh_tracers: dict[int, jax.Array] = {}
        self.creates_state = (
            False  # whether an optimizer steps: tensors of zeros are state (outermost only)
        )
        self.active = ActiveTensors()  # of a differentiable trace
        # Named scopes of the code, a `Scopes` of `capture/scopes.py` (outermost only).
        self.scopes: Any = None
        # Leaves from outside that a gradient may flow to (weak), each with its `.grad` before (outermost only).
        self.gradients: dict[int, tuple[weakref.ref[Tensor], Tensor | None]] = {}
        # torch numbers the nodes of its graph: those below this one were made outside (outermost only).
        self.first_node = private.next_sequence_number()
        # (node, output) of torch's graph -> the tensor from outside that it computed (outermost only).
        self.outer: dict[tuple[Node, int], Tensor] = {}
        self.retained: list[Buffer] = []  # buffers that nothing else holds yet (outermost only)
        self.writers: dict[int, tuple[str, int]] = {}  # id of a buffer -> the user's file and line
        # Tensors from outside that need a gradient and were read (nested traces only).
        self.readers: dict[int, Tensor] = {}

    def continues(self) -> bool:
        """Whether a trace that lingers is still in use."""
        return False

    def contexts(self) -> Iterator[AbstractContextManager[object]]:
        """The contexts to hold while the code of this trace runs, in the order in which they are entered."""
        return iter(())

    @property
    def root(self) -> Trace:
        """The outermost trace."""
        return self if self.parent is None else self.parent.root

    # -- values of buffers ----------------------------------------------------------------------------------------

    def read(self, buffer: Buffer) -> jax.Array:
        """A tracer for the value of the buffer; its array becomes a constant of the outermost jaxpr."""
        array = buffer.array
        if isinstance(array, jax.core.Tracer):
            return array
        constant = self.root.constant_of(buffer)
        if self.is_fresh(buffer):  # the code may still ask for its value
            if id(constant) not in self.fresh_tracers:
                self.fresh_tracers[id(constant)] = tracer_of(constant)
            return self.fresh_tracers[id(constant)]
        tracer = tracer_of(constant)
        self.substitute(buffer, tracer)
        return tracer

    def substitute(self, buffer: Buffer, tracer: jax.Array) -> None:
        """Let reads of the buffer return this tracer. It does not count as a write."""
        local = self.touch(buffer)
        if local is None:
            buffer.array = tracer
        else:
            local.array = local.read = tracer

    def constant_of(self, buffer: Buffer) -> jax.Array:
        """The array that represents the buffer in the outermost jaxpr."""
        index = self.constant_index.get(id(buffer))
        if index is None or self.captured[index][0]() is not buffer:
            index = self.constant_index[id(buffer)] = len(self.captured)
            self.captured.append((weakref.ref(buffer), self._constant(buffer)))
        return self.captured[index][1]

    def constant(self, array: jax.Array) -> jax.Array:
        """Another array object for the array of a buffer.

        Two buffers may hold one array (`copy.deepcopy` copies at the first write), and JAX code that is called here
        may use it, too. Each needs a constant of its own, because buffers become inputs.
        """
        return array if is_hollow(array) else another(array)

    def _constant(self, buffer: Buffer) -> jax.Array:
        while True:
            array = buffer.array
            try:
                return self.constant(array)
            except DONATED_ERRORS:
                if not (is_deleted(array) and is_replaced(buffer, array)):
                    raise

    def touch(self, buffer: Buffer) -> TracedBuffer | None:
        """Store the values of the buffer in this trace from now on.

        Returns None for a buffer that was created here and already holds a tracer: it has no earlier value to restore.
        """
        known = self.locals.get(id(buffer))
        if known is not None and known.buffer() is buffer:
            return known
        if isinstance(buffer.array, jax.core.Tracer) and self.created_here(buffer):
            return None
        self.locals.pop(
            id(buffer), None
        )  # of a dead one: the order must be that of the first touch
        local = self.locals[id(buffer)] = TracedBuffer(buffer)
        traced_buffer.share(buffer)
        return local

    def overwrite(self, buffer: Buffer, array: jax.Array) -> None:
        """Give a buffer a value that does not depend on its old one.

        The buffer becomes an input nevertheless, as every written buffer does.
        """
        self.read(buffer)
        self.touch(buffer)
        buffer.array = array

    def created_here(self, buffer: Buffer) -> bool:
        """Whether the buffer was created in this trace."""
        reference = self.new_buffers.get(id(buffer))
        return reference is not None and reference() is buffer

    def created(self, buffer: Buffer) -> bool:
        """Whether the buffer was created in this trace or in one around it."""
        return self.created_here(buffer) or (
            self.parent is not None and self.parent.created(buffer)
        )

    def is_fresh(self, buffer: Buffer) -> bool:
        """Whether the buffer was created in a trace and depends on no input so far."""
        return (
            not isinstance(buffer.array, jax.core.Tracer)
            and self.created(buffer)
            and not self.root.is_state(buffer)
        )

    def add_created(self, buffer: Buffer) -> None:
        """Note a buffer that was created inside."""
        self.new_buffers.pop(id(buffer), None)  # of a dead one: the order must be that of creation
        self.new_buffers[id(buffer)] = weakref.ref(buffer)

    def note_writer(self, buffer: Buffer) -> None:
        """Note the user's line that first writes a buffer, for the error if that write is refused."""
        if self.created_here(buffer) or id(buffer) in self.writers:
            return
        caller = origin(None)
        if caller is not None:
            _, code, instruction = caller
            self.writers[id(buffer)] = code.co_filename, line_of(code, instruction)

    # -- errors ---------------------------------------------------------------------------------------------------

    def note_refusal(self, error: BaseException) -> None:
        """Note an error about code that cannot be captured.

        Code that catches it would continue on a different path, which would then be the captured one.
        """
        if self.parent is not None:
            self.parent.note_refusal(error)
        else:
            self.refusals.append(error)

    def check_refusals(self) -> None:
        """Raise the first noted error that was raised, and then caught by the code."""
        for error in self.refusals:
            if error.__traceback__ is not None:
                raise error

    # -- gradients ------------------------------------------------------------------------------------------------

    def add_reader(self, tensor: Tensor) -> None:
        """Note a tensor from outside that needs a gradient and was read: an input of a body (`capture/bodies.py`).

        A view is represented by its base.
        """
        if self.parent is not None and not self.created_here(tensor.untyped_storage().buffer):  # type: ignore[attr-defined]
            base = tensor._base if tensor._is_view() and not tensor.is_leaf else None
            tensor = tensor if base is None else base
            self.readers[id(tensor)] = tensor

    # -- the end --------------------------------------------------------------------------------------------------

    def written(self) -> list[Buffer]:
        """At the end: the buffers whose value differs from what was read, in the order of their first touch."""
        self.active.clear()  # tensors that it alone holds have no effect
        return [
            buffer
            for local in self.locals.values()
            if (buffer := local.buffer()) is not None and local.array is not local.read
        ]

    def escaped(
        self, exclude: Collection[int] = (), held: Iterable[Tensor] = ()
    ) -> list[tuple[weakref.ref[Buffer], Spec]]:
        """Buffers with a tracer that were created inside and are still referenced.

        Garbage is collected if it may hold others than these. A full collection visits every object of the session
        (0.3 s), one of the young generations those that the code has created.

        Args:
            exclude: ids of buffers that do not count.
            held: tensors that known objects hold, for example those to which the code assigned them.
        """

        def alive() -> list[Buffer]:
            buffers = [reference() for reference in self.new_buffers.values()]
            others = [b for b in buffers if b is not None and id(b) not in exclude]
            return [b for b in others if isinstance(b.array, jax.core.Tracer)]

        leaves = [reference() for reference, _ in self.gradients.values()]
        gradients = [leaf.grad for leaf in leaves if leaf is not None]
        known = {id(buffer_of(t)) for t in (*gradients, *held) if is_device_tensor(t)}
        for generation in _YOUNG, _ALL:
            if all(id(buffer) in known for buffer in alive()):
                break
            gc.collect(generation)
        return [(weakref.ref(buffer), buffer.spec) for buffer in alive()]

    def close(self) -> None:
        """Release every buffer: it has the value from before the trace again."""
        for local in self.locals.values():
            buffer = local.buffer()
            if buffer is not None:
                traced_buffer.unshare(buffer)
        self.locals.clear()


def _never(buffer: Buffer) -> bool:
    return False


def tracer_of(constant: jax.Array) -> jax.Array:
    """A tracer for a constant of the trace: the identity gives one, and XLA drops it."""
    return jax.lax.reshape_p.bind(
        constant, new_sizes=constant.shape, dimensions=None, sharding=None
    )


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Open a trace and its contexts for a block of torch code."""
    global depth
    pending.flush()  # in a trace, a deferred call would run among the tracers
    trace.parent = current()
    with _lock:
        depth += 1
    _thread.trace = trace
    try:
        with ExitStack() as stack:
            for context in trace.contexts():
                stack.enter_context(context)
            yield trace
    finally:
        try:
            while trace.at_end:
                trace.at_end.pop()()
        finally:
            trace.close()
            _thread.trace = trace.parent
            with _lock:
                depth -= 1


def linger(trace: Trace) -> None:
    """Open a trace in this thread until `trace.continues()` is false."""
    stack = ExitStack()
    stack.enter_context(tracing(trace))
    trace.end = stack.close


@contextmanager
def outside() -> Iterator[None]:
    """Let this thread see the values that buffers have outside the open trace."""
    trace, _thread.trace = current(), None
    try:
        yield
    finally:
        _thread.trace = trace


@contextmanager
def aside() -> Iterator[None]:
    """Make every call in the block take the general path, even if nothing is traced."""
    global depth
    pending.flush()
    with _lock:
        depth += 1
    try:
        yield
    finally:
        with _lock:
            depth -= 1


def current() -> Trace | None:
    """This thread's innermost trace."""
    if not depth:
        return None
    trace: Trace | None = getattr(_thread, "trace", None)
    if trace is not None and trace.lingers and not trace.continues():
        trace.end()
        return None
    return trace


def active() -> bool:
    """Whether this thread is tracing."""
    return current() is not None
