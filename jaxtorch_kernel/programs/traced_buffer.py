"""The value of a buffer in a trace: the tracing thread sees the tracer, other threads see the array.

A trace replaces arrays by tracers, but all threads share the buffers. So the trace stores the tracer in a
`TracedBuffer`, and the buffer has a different class while a trace touches it: `array` and `spec` become properties that
check whether the reading thread is tracing. The tracing thread gets the value in the `TracedBuffer`, every other thread
the value in the buffer itself. A buffer that no trace touches has no overhead.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

import jax

from ..storage.buffer import Buffer, Spec

if TYPE_CHECKING:
    from .tracing import Trace

thread = threading.local()  # `.trace`: this thread's innermost trace
_array = vars(Buffer)["array"]
_spec = vars(Buffer)["spec"]
_lock = threading.Lock()
# How many open traces have touched a buffer.
_traces: weakref.WeakKeyDictionary[Buffer, int] = weakref.WeakKeyDictionary()
_shared_classes: dict[type[Buffer], type[Buffer]] = {}


class TracedBuffer:
    """The value of a buffer in one trace.

    Attributes:
        buffer: a weak reference, because a buffer that the code created and dropped must not count as alive.
        array, spec: the current value, for the thread of the trace.
        read: the value last read from outside. If `array` is a different object, the code has written the buffer.
    """

    __slots__ = ("array", "buffer", "read", "spec")

    def __init__(self, buffer: Buffer):
        self.buffer = weakref.ref(buffer)
        self.array = self.read = buffer.array
        self.spec = buffer.spec


def _value_in_trace(buffer: object) -> TracedBuffer | None:
    """The value of the buffer in the innermost trace of this thread that has touched it."""
    trace: Trace | None = getattr(thread, "trace", None)
    while trace is not None:
        local = trace.locals.get(id(buffer))
        if local is not None and local.buffer() is buffer:
            return local
        trace = trace.parent
    return None


class _Shared:
    """The first base class of a buffer while traces touch it."""

    __slots__ = ()

    @property
    def array(self) -> jax.Array:
        local = _value_in_trace(self)
        return _array.__get__(self) if local is None else local.array

    @array.setter
    def array(self, value: jax.Array) -> None:
        local = _value_in_trace(self)
        if local is None:
            _array.__set__(self, value)
        else:
            local.array = value

    @property
    def spec(self) -> Spec:
        local = _value_in_trace(self)
        return _spec.__get__(self) if local is None else local.spec

    @spec.setter
    def spec(self, value: Spec) -> None:
        local = _value_in_trace(self)
        if local is None:
            _spec.__set__(self, value)
        else:
            local.spec = value


def share(buffer: Buffer) -> None:
    """Count a trace that begins to touch the buffer."""
    with _lock:
        count = _traces.get(buffer, 0)
        _traces[buffer] = count + 1
        if not count:
            buffer.__class__ = _shared_class(type(buffer))


def unshare(buffer: Buffer) -> None:
    """Count down: a trace that touched the buffer has ended."""
    with _lock:
        count = _traces.pop(buffer) - 1
        if count:
            _traces[buffer] = count
        else:
            buffer.__class__ = type(buffer).__bases__[1]


def _shared_class(cls: type[Buffer]) -> type[Buffer]:
    shared = _shared_classes.get(cls)
    if shared is None:
        shared = _shared_classes[cls] = type(
            f"Shared{cls.__name__}", (_Shared, cls), {"__slots__": ()}
        )
    return shared
