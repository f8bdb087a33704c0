"""Errors about torch code in a trace: it needs a value that a tracer does not have."""

from __future__ import annotations

import jax

from .tracing import active, current


class Untraceable(RuntimeError):
    """Torch code in a trace needs a value that exists only at run time, or an effect that no program supports.

    Attributes:
        advice: what to write instead, unless the error is about a value.
    """

    def __init__(self, what: str, advice: str = ""):
        super().__init__(what)
        self.advice = advice
        trace = current()
        if trace is not None:
            trace.note_refusal(self)


def check_open() -> None:
    """Raise an error about a tensor that holds a tracer, if no trace is open.

    Raises:
        RuntimeError: no trace is open.
    """
    if not active():
        raise RuntimeError(
            "this tensor was made while JAX traced the code (under jax.jit, jax.grad or jax.vmap), and that trace has "
            "ended: it never had a value. Return the tensor from the traced function instead of storing it"
        )


def forbid(array: object, what: str) -> None:
    """Raise an error if the array is a tracer, which has no value.

    Raises:
        Untraceable: it is a tracer.
        RuntimeError: it is a tracer of a trace that has ended.
    """
    if isinstance(array, jax.core.Tracer):
        check_open()
        raise Untraceable(f"a tensor inside a trace cannot be {what}: it has no value yet")
