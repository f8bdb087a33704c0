"""Whether two traces of a step gave the same program, so that the second runs what was compiled for the first.

Jaxprs are compared part by part, not as text: JAX takes longer to print a large one than to trace it. The jaxprs inside
are mostly the same objects, because JAX caches those of its own functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from .captured import Captured

# Parameters that only differentiation reads, which is over in a step. They are new functions in each trace.
_RULES = frozenset({"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"})


def same_program(a: Captured, b: Captured) -> bool:
    """Whether two traces gave the same program, apart from where its inputs come from."""
    return (
        a.written == b.written
        and len(a.escaped) == len(b.escaped)
        and list(map(_signature, a.avals)) == list(map(_signature, b.avals))
        and _same_constants(a.constants, b.constants)
        and _Pairs().same(a.jaxpr, b.jaxpr)
    )


def _signature(aval: jax.ShapeDtypeStruct) -> tuple[object, ...]:
    return aval.shape, aval.dtype, aval.sharding


def _same_constants(first: list[int | jax.Array], second: list[int | jax.Array]) -> bool:
    return len(first) == len(second) and all(
        type(x) is type(y) and (x == y if isinstance(x, int) else _same_bytes(x, y))
        for x, y in zip(first, second, strict=True)
    )


def _same_bytes(first: object, second: object) -> bool:
    """Equal to the last bit: 0.0 is not -0.0."""
    if first is second:
        return True
    x, y = np.asarray(first), np.asarray(second)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


class _Pairs:
    """Compares the parts of two jaxprs, each pair of jaxprs inside once."""

    def __init__(self) -> None:
        self._same: dict[tuple[int, int], bool] = {}

    def same(self, a: object, b: object) -> bool:
        """Whether two jaxprs, or two parameters of equations, are the same."""
        if a is b:
            return True
        if type(a) is not type(b):
            return False
        if isinstance(a, Jaxpr) and isinstance(b, Jaxpr):
            key = id(a), id(b)
            if key not in self._same:
                self._same[key] = self._same_jaxpr(a, b)
            return self._same[key]
        if isinstance(a, ClosedJaxpr) and isinstance(b, ClosedJaxpr):
            return self.same(a.jaxpr, b.jaxpr) and self._all(a.consts, b.consts)
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return self._all(a, b)
        if isinstance(a, dict) and isinstance(b, dict):
            return list(a) == list(b) and self._all(list(a.values()), list(b.values()))
        if isinstance(a, np.ndarray | np.generic | float | complex | jax.Array):
            return _same_bytes(a, b)
        return bool(a == b)

    def _all(self, a: Sequence[object], b: Sequence[object]) -> bool:
        return len(a) == len(b) and all(map(self.same, a, b))

    def _same_jaxpr(self, a: Jaxpr, b: Jaxpr) -> bool:
        twin: dict[Var, Var] = {}  # variables of `a` -> those of `b`

        def defined(first: Sequence[Var], second: Sequence[Var]) -> bool:
            twin.update(zip(first, second, strict=False))
            return [v.aval for v in first] == [v.aval for v in second]

        def used(first: Sequence[Var | Literal], second: Sequence[Var | Literal]) -> bool:
            return len(first) == len(second) and all(
                isinstance(y, Literal) and x.aval == y.aval and self.same(x.val, y.val)
                if isinstance(x, Literal)
                else twin[x] is y
                for x, y in zip(first, second, strict=True)
            )

        return (
            len(a.eqns) == len(b.eqns)
            and a.effects == b.effects
            and defined(a.constvars, b.constvars)
            and defined(a.invars, b.invars)
            and all(
                x.primitive is y.primitive
                and x.ctx == y.ctx
                and used(x.invars, y.invars)
                and self._same_params(x.params, y.params)
                and defined(x.outvars, y.outvars)
                for x, y in zip(a.eqns, b.eqns, strict=True)
            )
            and used(a.outvars, b.outvars)
        )

    def _same_params(self, a: dict[str, object], b: dict[str, object]) -> bool:
        return a.keys() == b.keys() and all(
            name in _RULES or self.same(a[name], b[name]) for name in a
        )
