"""Arithmetic on 64-bit numbers, which a TPU does not have: its compiler computes it from 32-bit halves.

The compiler replaces such numbers by pairs before it optimizes. So they are counted in the program as it was traced:
each operation that computes a 64-bit number, without those that only move or convert.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params

from ..hlo.source import location_of_stack
from ..hlo.work import name_set
from ..programs import Location

_WIDE = ("float64", "int64", "uint64", "complex128")
_MOVES = name_set(
    """
    broadcast_in_dim convert_element_type copy copy_p iota reshape transpose squeeze expand_dims slice dynamic_slice
    dynamic_update_slice gather scatter concatenate pad rev select_n split stop_gradient device_put
    optimization_barrier sharding_constraint bitcast_convert_type
    """
)


@dataclass(frozen=True)
class WideWork:
    """Arithmetic on 64-bit numbers at one line.

    Attributes:
        dtype: "float64", "int64" or the like.
        operations: how many compute such numbers.
        elements: how many numbers they compute in one run; the body of a loop counts once.
        location: the line; None if unknown.
    """

    dtype: str
    operations: int
    elements: int
    location: Location | None


def wide_work(jaxpr: ClosedJaxpr) -> list[WideWork]:
    """The arithmetic on 64-bit numbers in a program, by line: floating-point numbers first, most elements first.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jaxtorch.insight.fit.wide_types import wide_work
        >>> with jax.enable_x64(True):
        ...     jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x.astype("float64")) + 1)(jnp.ones(3, "float32"))
        >>> [(w.dtype, w.operations, w.elements) for w in wide_work(jaxpr)]
        [('float64', 2, 6)]
    """
    operations: Counter[tuple[str, Location | None]] = Counter()
    elements: Counter[tuple[str, Location | None]] = Counter()
    for equation, location in _equations(jaxpr.jaxpr):
        if equation.primitive.name in _MOVES:
            continue
        for variable in equation.outvars:
            dtype = str(getattr(variable.aval, "dtype", ""))
            if dtype in _WIDE:
                key = dtype, location
                operations[key] += 1
                elements[key] += math.prod(getattr(variable.aval, "shape", ()))
                break
    rows = [WideWork(dtype, n, elements[dtype, at], at) for (dtype, at), n in operations.items()]
    return sorted(rows, key=lambda row: ("int" in row.dtype, -row.elements))


def _equations(
    jaxpr: Jaxpr, around: Location | None = None
) -> Iterator[tuple[JaxprEqn, Location | None]]:
    """The equations of a program that contain no others, each with its line.

    The functions that JAX itself compiles (`jnp.floor_divide`) are traced apart: what they contain has the line of the
    call, `around`.
    """
    for equation in jaxpr.eqns:
        location = _location(equation) or around
        inner = list(jaxprs_in_params(equation.params))
        if not inner:
            yield equation, location
        for one in inner:
            yield from _equations(one, location)


def _location(equation: JaxprEqn) -> Location | None:
    traceback = equation.source_info.traceback
    if traceback is None:
        return None
    frames = ((f.file_name, f.line_num, f.function_name) for f in traceback.frames)
    return location_of_stack(frames)
