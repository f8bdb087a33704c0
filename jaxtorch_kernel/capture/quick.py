"""Fast lookup of calls whose arguments are only whole device tensors, without a pytree and without a key.

torch's own tensor guard, which Dynamo uses, compares class, dtype, device, size, stride and requires_grad in a seventh
of a microsecond. Two things that it does not cover are checked here: the specs of the buffers, which show whether a
tensor is a view of a larger one, and attributes that the user has set on a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast

import jax
import torch

from ..base import torch_private as private
from ..base.ambient import ambient
from ..dispatch.results import Fresh, wrap_result
from ..operators.bridge import Bridge
from ..programs import tracing
from ..programs.stats import ProgramRecord
from ..programs.writes import DONATED_ERRORS
from ..storage.buffer import Buffer, Spec, buffer_of
from .signature import Arguments

# Runs a program on the arguments of a call, which the caller gets the result of: it may be any value.
CallOf = Callable[[tuple[Any, ...]], Any]
Tensor = torch.Tensor
_storage_of = Tensor.untyped_storage
_buffer_of, _spec_of, _attributes_of = map(attrgetter, ("buffer", "spec", "__dict__"))

MOST = 16  # entries of one function: each one that does not match costs a call a quarter of a microsecond

# A quick call returns this if the program's guards fail: the general path looks further.
STALE = object()


class QuickProgram(Protocol):
    """A program that quick calls can run: a `Replay`."""

    def quick_call(self, specs: list[Spec]) -> CallOf:
        """Runs a call whose arguments' buffers have these specs."""


class Quick(NamedTuple):
    """One program that may run a call.

    Attributes:
        ambient: the ambient state that it was traced in.
        matches: whether tensors are like those of the call that was traced.
        call_of: runs it on a call's arguments; returns STALE if its guards fail.
        program: the program that `call_of` runs.
    """

    ambient: tuple[object, ...]
    matches: Callable[..., bool]
    call_of: CallOf
    program: QuickProgram


def quick_of(arguments: Arguments, program: QuickProgram) -> Quick | None:
    """The quick path to a program that has run before; None if calls like this one need the general path.

    Args:
        arguments: those of the call, which has not run yet: it may change them.
        program: the program that the call runs.
    """
    tensors = arguments.caller_leaves
    if not arguments.plain or any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
        return None
    specs = [buffer_of(t).spec for t in tensors]
    if buffers_of(tensors, specs) is None:
        return None
    return Quick(ambient(), private.guard_of(tensors), program.quick_call(specs), program)


def added(quick: Quick, known: Sequence[Quick]) -> tuple[Quick, ...]:
    """The new entry, then those of `known`; the oldest are dropped."""
    others = (q for q in known if q.program is not quick.program)
    return (quick, *others)[:MOST]


def buffers_of(tensors: Sequence[Tensor], specs: list[Spec]) -> list[Buffer] | None:
    """The buffers of the tensors, if these are whole, share no memory and have no user attributes."""
    buffers: list[Buffer] = list(map(_buffer_of, map(_storage_of, tensors)))
    if list(map(_spec_of, buffers)) != specs or any(map(_attributes_of, tensors)):
        return None
    return None if len(buffers) > 1 and len(set(map(id, buffers))) < len(buffers) else buffers


def run_of(
    specs: list[Spec],
    forward: Callable[..., Sequence[jax.Array]],
    record: ProgramRecord,
    leaf: Fresh,
    maker: Bridge,
) -> CallOf:
    """A call of a program that takes its arguments' arrays and returns one tensor, checked as `buffers_of` does.

    It is one generated function without loops, which would take half of the time of a small call.

    Args:
        specs: of the arguments' buffers.
        forward: runs the program.
        record: of the program, which counts its runs.
        leaf, maker: what `wrap_result` takes.
    """
    names: dict[str, object] = {f"s{i}": spec for i, spec in enumerate(specs)}
    names |= {
        "STALE": STALE,
        "DONATED_ERRORS": DONATED_ERRORS,
        "tracing": tracing,
        "wrap_result": wrap_result,
    }
    names |= {"forward": forward, "record": record, "leaf": leaf, "maker": maker}
    count = range(len(specs))
    differs = ["tracing.depth"]  # a trace or a profile is open, maybe in another thread
    differs += [f"b{i}.spec is not s{i} or t{i}.__dict__" for i in count]
    if len(specs) > 1:
        differs.append(f"len({{{', '.join(f'id(b{i})' for i in count)}}}) < {len(specs)}")
    names_of = "".join(f"t{i}, " for i in count)
    lines = [
        "def call_of(args):",
        f"    {names_of or '[]'} = args",
        *(f"    b{i} = t{i}.untyped_storage().buffer" for i in count),
        f"    if {' or '.join(differs)}: return STALE",
        # The general path raises the error, or waits for a thread that writes to an argument.
        f"    try: done = forward({', '.join(f'b{i}.array' for i in count)})",
        "    except DONATED_ERRORS: return STALE",
        "    record.calls += 1",
        "    return wrap_result(leaf, done[0], maker)",
    ]
    exec("\n".join(lines), names)
    return cast(CallOf, names["call_of"])
