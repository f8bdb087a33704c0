"""Traces: torch code run over tracers instead of values.

Tracing is substitution. While a trace is open, reading a cell (a Buffer, or a random source) returns a tracer in
place of its array. The torch code runs unchanged, and every alias sees the tracer, because all aliases share the
cell. Only the tracing thread sees it: the trace stores the tracer, and the cell itself keeps its array, which
other threads continue to read and write (`local.py`). When the trace closes, its tracers are dropped.

A `Trace` records, for one such run:

* **captured** cells, which existed before and were read. Their array becomes a constant of the jaxpr under its own
  identity, by which `capture/` finds it again and turns it into an input;
* **written** cells, which are captured cells that hold a different tracer at the end;
* **born** cells, which were created inside. A cell that depends on no input (`zeros`, and values computed from it)
  stays concrete, so that optimizer state created in the first step exists after the trace.

Traces nest (the body of a scan inside a captured function); a nested trace shares the captures of the outermost one.
`tracing(trace)` is the only way to open one. What else must hold while the code runs depends on the code, and is said
by the class of the trace (`Trace.contexts`).
`depth` is a plain integer for the whole process, so the hot path checks one attribute. While it is above zero, a
kernel also checks whether the trace belongs to its own thread: eager work in other threads continues.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import torch

from ..base import torch_private as private
from . import local
from .local import Local
from .site import line_of, origin

depth = 0
_own = local.own
_lock = threading.Lock()  # of `depth`: `+=` is no single step among threads


class Trace:
    """The books of one run over tracers. See the module's text.

    Args:
        differentiable: `jax.vjp` will run through what is traced, so that a tensor that needs no gradient is read
            as a constant (`lax.stop_gradient`).
        eager: run what depends on no input at once, on values.
    """

    def __init__(self, differentiable: bool = False, eager: bool = False):
        self.differentiable = differentiable
        self.eager = eager
        self.parent: Trace | None = None
        # Errors of the capture that the code may have caught (outermost only).
        self.refusals: list[BaseException] = []
        # Cells are held weakly: one that the code made and dropped must not count as kept.
        self.locals: dict[int, Local] = {}  # id of a touched cell -> what it holds in this trace
        self.captured: list[tuple[Any, Any]] = []  # cell and its constant (outermost only)
        self.place: dict[int, int] = {}  # id of a cell -> its place in `captured` (outermost only)
        self.constants: set[int] = set()  # ids of the constants
        self.read_cells: set[int] = set()  # ids of the cells that a call has read
        self.born: dict[int, weakref.ref[Any]] = {}
        # id of a cell -> the tensor that it was computed for, if from what a gradient flows to. Held strongly: only
        # when its kernel has returned does autograd say that it requires one.
        self.active: dict[int, Any] = {}
        self.views: dict[int, Any] = {}  # id of a tensor -> itself: views of those
        self.scopes: Any = (
            None  # what work belongs to, for names (outermost only; `capture/scopes.py`)
        )
        # Leaves from outside that a gradient may flow to (weak), each with its `.grad` before (outermost only).
        self.gradients: dict[int, tuple[Any, Any]] = {}
        # (node, output) of torch's graph -> a tensor from outside that it computed (outermost only).
        self.first_node = private.next_sequence_number()  # torch numbers the nodes of its graph
        self.outer: dict[tuple[Any, int], Any] = {}
        self.kept: list[Any] = []  # cells that only the trace holds so far (outermost only)
        self.writers: dict[int, tuple[str, int]] = {}  # id of a cell -> the user's file and line
        self.readers: dict[
            int, Any
        ] = {}  # tensors that need a gradient and were read (nested only)

    def contexts(self) -> Iterator[AbstractContextManager[Any]]:
        """The contexts that hold while the code of this trace runs, in the order in which they are entered."""
        return iter(())

    @property
    def root(self) -> Trace:
        """The outermost trace."""
        return self if self.parent is None else self.parent.root

    def read(self, cell: Any) -> Any:
        """A tracer for what the cell holds; its array becomes a constant of the outermost jaxpr."""
        array = cell.array
        if isinstance(array, jax.core.Tracer):
            return array
        constant = self.root.constant_of(cell)
        tracer = tracer_of(constant)
        if not self.is_fresh(cell):  # whose value the code may still ask for
            self.substitute(cell, tracer)
        return tracer

    def substitute(self, cell: Any, tracer: Any) -> None:
        """Let reads of the cell give this tracer. It does not count as a write."""
        mine = self.touch(cell)
        if mine is None:
            cell.array = tracer
        else:
            mine.array = mine.read = tracer

    def constant_of(self, cell: Any) -> Any:
        """The array that represents the cell in the outermost jaxpr."""
        place = self.place.get(id(cell))
        if place is None or self.captured[place][0]() is not cell:
            array = cell.array
            if id(array) in self.constants:  # two cells over one array must stay apart
                array = array.copy()
            self.constants.add(id(array))
            place = self.place[id(cell)] = len(self.captured)
            self.captured.append((weakref.ref(cell), array))
        return self.captured[place][1]

    def touch(self, cell: Any) -> Local | None:
        """Keep what the cell holds from now on in this trace. A tracer of a cell that was made here stays in the cell:
        there is nothing to go back to.
        """
        known = self.locals.get(id(cell))
        if known is not None and known.cell() is cell:
            return known
        if isinstance(cell.array, jax.core.Tracer) and self.bore(cell):
            return None
        mine = self.locals[id(cell)] = Local(cell)
        local.share(cell)
        return mine

    def overwrite(self, cell: Any, array: Any) -> None:
        """Give a cell a value that does not depend on the one before. It is an input all the same, as all that is
        written.
        """
        self.read(cell)
        self.touch(cell)
        cell.array = array

    def bore(self, cell: Any) -> bool:
        """Whether the cell was made in this trace."""
        reference = self.born.get(id(cell))
        return reference is not None and reference() is cell

    def made(self, cell: Any) -> bool:
        """Whether the cell was made in this trace or in one around it."""
        return self.bore(cell) or (self.parent is not None and self.parent.made(cell))

    def is_fresh(self, cell: Any) -> bool:
        """Whether the cell was made in a trace and depends on no input so far."""
        return not isinstance(cell.array, jax.core.Tracer) and (
            self.bore(cell) or (self.parent is not None and self.parent.is_fresh(cell))
        )

    def note_refusal(self, error: BaseException) -> None:
        """Note an error that says what the code cannot do: code that catches it goes on with something else."""
        if self.parent is not None:
            self.parent.note_refusal(error)
        else:
            self.refusals.append(error)

    def check_refusals(self) -> None:
        """Raise the first of those that were raised, and caught."""
        for error in self.refusals:
            if error.__traceback__ is not None:
                raise error

    def add_reader(self, tensor: Any) -> None:
        """Note a tensor from outside that needs a gradient and was read: an input of a body (`capture/bodies.py`).

        A view represents its base.
        """
        if self.parent is not None and not self.bore(tensor.untyped_storage().buffer):
            tensor = tensor._base if tensor._is_view() and not tensor.is_leaf else tensor
            self.readers[id(tensor)] = tensor

    def note_writer(self, cell: Any) -> None:
        """Note the user's line that writes a cell first, for the message of a write that is refused."""
        found = None if self.bore(cell) or id(cell) in self.writers else origin(None)
        if found is not None:
            _, code, instruction = found
            self.writers[id(cell)] = code.co_filename, line_of(code, instruction)

    def is_constant(self, tensor: Any) -> bool:
        """Whether no gradient flows to a tensor of this (differentiable) trace.

        Within a kernel that calls other operators nothing requires a gradient: autograd sees the kernel as one. What
        was computed there is no constant, though. Outside, a tensor that requires none is a detached one.
        """
        if tensor.requires_grad:
            return _ends_nowhere(tensor)
        if id(tensor) in self.views:
            return False
        computed = self.active.get(id(tensor.untyped_storage().buffer))
        return computed is None or bool(computed.requires_grad)

    def add_active(self, tensor: Any) -> None:
        """Note a tensor that was computed from what a gradient flows to."""
        if tensor.is_floating_point() or tensor.is_complex():
            self.active[id(tensor.untyped_storage().buffer)] = tensor

    def add_views(self, source: Any, views: Any) -> None:
        """Note views, by whatever operator but `detach`, of a tensor that may be such a one."""
        if self.differentiable and torch.is_grad_enabled() and not self.is_constant(source):
            for view in views if isinstance(views, list | tuple) else (views,):
                self.views[id(view)] = view

    def detach(self, tensor: Any) -> None:
        """Forget what was noted: the tensor was detached in place."""
        self.views.pop(id(tensor), None)
        self.active.pop(id(tensor.untyped_storage().buffer), None)

    def add_born(self, cell: Any) -> None:
        """Note a cell made inside."""
        self.born[id(cell)] = weakref.ref(cell)

    def written(self) -> list[Any]:
        """At the end: the cells that hold something else than what was read, in the order of their first touch."""
        self.active.clear()  # what only these hold is not kept
        self.views.clear()
        return [
            cell
            for mine in self.locals.values()
            if (cell := mine.cell()) is not None and mine.array is not mine.read
        ]

    def escaped(self, but: Collection[int] = ()) -> list[tuple[Any, Any]]:
        """Cells with a tracer that were created inside and are still referenced, except `but` (by identity)."""

        def alive() -> list[Any]:
            cells = [reference() for reference in self.born.values()]
            kept = [c for c in cells if c is not None and id(c) not in but]
            return [c for c in kept if isinstance(c.array, jax.core.Tracer)]

        if alive():
            gc.collect()  # a cycle may hold them, and then nobody does
        return [(weakref.ref(cell), cell.spec) for cell in alive()]

    def close(self) -> None:
        """Let go of every cell: what it held before is what it holds again."""
        for mine in self.locals.values():
            cell = mine.cell()
            if cell is not None:
                local.unshare(cell)
        self.locals.clear()


def tracer_of(constant: Any) -> Any:
    """A tracer for a constant of the trace: the identity gives one, and XLA drops it."""
    return jax.lax.reshape_p.bind(
        constant, new_sizes=constant.shape, dimensions=None, sharding=None
    )


def _ends_nowhere(tensor: Any) -> bool:
    """Whether a tensor is a view taken under `no_grad`, or a view of one: it says that it requires a gradient, as what
    it is a view of does, and none flows through it.
    """
    if not tensor._is_view() or not tensor._base.requires_grad:
        return False
    node = tensor.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node is None


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Hold while torch code runs over tracers: opens the trace and its contexts."""
    global depth
    trace.parent = current()
    with _lock:
        depth += 1
    _own.trace = trace
    try:
        with ExitStack() as stack:
            for context in trace.contexts():
                stack.enter_context(context)
            yield trace
    finally:
        trace.close()
        _own.trace = trace.parent
        with _lock:
            depth -= 1


@contextmanager
def aside() -> Iterator[None]:
    """Hold while every call takes the general path, though nothing may be traced."""
    global depth
    with _lock:
        depth += 1
    try:
        yield
    finally:
        with _lock:
            depth -= 1


def current() -> Trace | None:
    """This thread's innermost trace."""
    return getattr(_own, "trace", None) if depth else None


def active() -> bool:
    """Whether this thread is tracing."""
    return current() is not None


class Untraceable(RuntimeError):
    """Torch code under a trace needs a value that exists only at run time, or an effect that no program supports.

    Attributes:
        advice: what to write instead, where it is not about a value.
    """

    def __init__(self, what: str, advice: str = ""):
        super().__init__(what)
        self.advice = advice
        trace = current()
        if trace is not None:
            trace.note_refusal(self)


def forbid(array: Any, what: str) -> None:
    """Raise if the array is traced and so has no value.

    Raises:
        Untraceable: it is a tracer.
    """
    if isinstance(array, jax.core.Tracer):
        raise Untraceable(f"a tensor inside a trace cannot be {what}: it has no value yet")
