"""The table of lowerings: an ATen operator's functional overload -> a JAX function.

A lowering takes the operator's arguments in schema order and returns what the operator returns (`types.py`). Tensors
arrive as JAX arrays (inside a trace), Scalars and floats as `Number` (a run-time operand, so that a changing learning
rate does not recompile), and everything else unchanged. The result is cast to the dtype that torch's own Meta kernel
returns, so a lowering only has to get values and shapes right. Only the functional overload is written: in-place and
`out=` overloads are derived from the schema (`dispatch/program.py`).

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
    """An operator's JAX function, and how the dispatch calls it."""

    function: Callable[..., Any]
    # Names of Scalar or float arguments whose value is compiled into the program (an exponent that is unrolled).
    static: frozenset[str] = frozenset()
    # Names of bool arguments that are operands, as integers; others are static.
    flags: frozenset[str] = frozenset()
    # The function takes `Draws` before the operator's arguments.
    random: bool = False
    # Whether torch's Meta kernel gives result dtypes, shapes and strides; False where it is wrong or missing.
    meta: bool = True
    # The result is channels last if the first or second argument is, although torch's Meta kernel does not say so.
    keeps_format: bool = False
    # Whether the operator is one of torch's decompositions, which docs/coverage.md counts separately.
    decomposed: bool = False
    # Whether the result depends on the shape and the dtype of the tensors alone, not on their values (`zeros_like`).
    modeled: bool = False
    # Lists of tensors are taken position by position: parts of a long list may run as programs of their own.
    by_position: bool = False


LOWERINGS: dict[str, Lowering] = {}


def lower(
    *names: str,
    static: Iterable[str] = (),
    flags: Iterable[str] = (),
    random: bool = False,
    meta: bool = True,
    keeps_format: bool = False,
    modeled: bool = False,
    by_position: bool = False,
) -> Callable[[F], F]:
    """Register a function as the lowering of these overloads, named as in `torch.ops.aten` ("add.Tensor").

    An overload called "default" may be left out: "relu" is "relu.default".

    Raises:
        ValueError: one of them already has a lowering.
    """

    def register(function: F) -> F:
        for name in names:
            full = name if "." in name else f"{name}.default"
            if full in LOWERINGS:
                raise ValueError(f"{full} has two lowerings: {function} and {LOWERINGS[full]}")
            LOWERINGS[full] = Lowering(
                function,
                frozenset(static),
                frozenset(flags),
                random,
                meta,
                keeps_format,
                by_position=by_position,
                modeled=modeled,
            )
        return function

    return register
