"""Programs that only copy, run by XLA's runtime while calls are few.

`clone`, `copy_` and their like need a program for each shape, whose compilation takes 7 to 14 ms. XLA's runtime copies
an array without one, in 50 µs. So the first calls of such a program are copies by the runtime. Once they have cost
about as much as a compilation, the program takes over.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var

from ..base.jax_private import checks_values
from ..programs import watching
from ..storage import placement

_MOST = 128  # calls; each takes 50 µs longer than one of the program
# The most bytes that the runtime writes. A program writes to the memory of the target; a copy takes memory beside it.
MOST_WRITTEN = 64 << 20
# The most bytes whose copy a profile need not show.
_MOST_UNSEEN = 1 << 20
# What a value in a program is, if it is an operand in another shape: the operand, and the order of its dimensions.
_Moved = tuple[int, tuple[int, ...]]


class Copies:
    """A program of which each result is a copy of an operand.

    Args:
        sources: the index of each result's operand.
        nbytes: the size of all results.
    """

    def __init__(self, sources: Sequence[int], nbytes: int):
        self._sources, self._nbytes = sources, nbytes
        self._calls = 0

    def are_left(self) -> bool:
        """Whether the runtime makes the next one. A profile and JAX's checks see programs only."""
        if watching.watcher is not None and self._nbytes > _MOST_UNSEEN:
            return False
        return self._calls < _MOST and not checks_values()

    def run(self, *operands: jax.Array) -> list[jax.Array]:
        """What the program returns for these operands."""
        self._calls += 1
        arrays = [operands[i] for i in self._sources]
        return watching.copied(arrays) if watching.watcher else placement.all_copied(arrays)


def copies_of(program: ClosedJaxpr) -> Copies | None:
    """What a program copies; None if it computes anything, or reorders elements.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((2, 3))
        >>> copies_of(jax.make_jaxpr(lambda x, y: y.T.T)(x, x)) is None
        False
        >>> copies_of(jax.make_jaxpr(lambda x: x.T)(x)) is None
        True
    """
    jaxpr = program.jaxpr
    moved: dict[Var, _Moved] = {
        var: (i, tuple(range(len(var.aval.shape)))) for i, var in enumerate(jaxpr.invars)
    }
    for equation in jaxpr.eqns:
        after = _after(equation, moved)
        if after is not None:
            moved[equation.outvars[0]] = after
    sources = []
    for result in jaxpr.outvars:
        known = moved.get(result) if isinstance(result, Var) else None
        if known is None or not _is_sorted(known[1]):
            return None
        if result.aval.shape != jaxpr.invars[known[0]].aval.shape:
            return None
        sources.append(known[0])
    nbytes = sum(a.size * a.dtype.itemsize for a in program.out_avals)
    return Copies(sources, nbytes) if sources else None


def _after(equation: JaxprEqn, moved: dict[Var, _Moved]) -> _Moved | None:
    """What the result of an equation is, if it is an operand in another shape."""
    name, value = equation.primitive.name, equation.invars[0] if equation.invars else None
    if name not in ("transpose", "reshape") or not isinstance(value, Var) or value not in moved:
        return None
    source, order = moved[value]
    if name == "transpose":
        return source, tuple(order[d] for d in equation.params["permutation"])
    if not _is_sorted(order) or equation.params["dimensions"] is not None:
        return None
    return source, tuple(range(len(equation.params["new_sizes"])))


def _is_sorted(order: Sequence[int]) -> bool:
    return tuple(order) == tuple(range(len(order)))
