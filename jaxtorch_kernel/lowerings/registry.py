"""The table of lowerings: an ATen operator's functional overload -> a JAX function.

A lowering takes the operator's arguments in schema order and returns what the operator returns. Tensors
arrive as JAX arrays (inside a trace), Scalars and floats as `Number` (a run-time operand, so that a changing
learning rate never compiles), everything else unchanged. The result is cast to the dtype that torch's own Meta
kernel returns, so a lowering only has to get values and shapes right. In-place and `out=` overloads are derived
from the schema (`dispatch/program.py`); only the functional overload is written.

    @lower("lerp.Scalar")
    def lerp_scalar(self, end, weight):
        weight = weight.as_dtype(self.dtype)
        return self + weight * (end - self)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Lowering:
    """One operator's JAX function, and what the dispatch must know to call it."""

    function: Callable[..., Any]
    # Names of Scalar or float arguments whose value shapes the program (an exponent that is unrolled).
    static: frozenset[str] = frozenset()
    # The function takes a JAX key (uint32[2] data) before the operator's arguments.
    random: bool = False
    # torch's Meta kernel is asked for result dtypes, shapes and strides. Off where it is wrong or missing.
    meta: bool = True
    # The result is channels last where the first or second argument is, of which torch's Meta kernel says nothing.
    keeps_format: bool = False
    # Whether the operator came from torch's decompositions (counted apart in docs/coverage.md).
    decomposed: bool = False


LOWERINGS: dict[str, Lowering] = {}


def lower(
    *names: str,
    static: Iterable[str] = (),
    random: bool = False,
    meta: bool = True,
    keeps_format: bool = False,
) -> Callable[[F], F]:
    """Register a function as the lowering of these overloads, named as in `torch.ops.aten` ("add.Tensor").

    An overload called "default" may be left out: "relu" is "relu.default".

    Raises:
        ValueError: one of them has a lowering already.
    """

    def register(function: F) -> F:
        for name in names:
            full = name if "." in name else f"{name}.default"
            if full in LOWERINGS:
                raise ValueError(f"{full} has two lowerings: {function} and {LOWERINGS[full]}")
            LOWERINGS[full] = Lowering(function, frozenset(static), random, meta, keeps_format)
        return function

    return register
