"""Fast lookup of calls whose arguments are only whole device tensors, without a pytree and without a key.

torch's own tensor guard, which Dynamo uses, compares class, dtype, device, size, stride and requires_grad in a seventh
of a microsecond. What it does not cover is checked here: the buffers, and attributes that the user has set on a tensor.
The spec of a buffer shows whether a tensor is a view of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from ..base import torch_private as private
from ..base.ambient import ambient
from ..dispatch.results import Fresh, wrap_result
from ..programs import tracing
from ..programs.atomic import DONATED_ERRORS
from ..storage.buffer import Spec, buffer_of
from .signature import Arguments

Tensor = torch.Tensor
_storage_of = Tensor.untyped_storage
_buffer_of, _spec_of, _attributes_of = map(attrgetter, ("buffer", "spec", "__dict__"))

MOST = 16  # of one function: each costs a quarter of a microsecond to pass by

# What a quick call returns where the program no longer says what the code would do.
STALE = object()


class Quick(NamedTuple):
    """One program that a call may be run by.

    Attributes:
        ambient: the state that it was traced in.
        matches: whether tensors are like those of its call.
        call_of: runs it on a call's arguments; STALE where it may not run.
        program: whose `call_of` this is.
    """

    ambient: tuple[Any, ...]
    matches: Callable[..., bool]
    call_of: Callable[[tuple[Any, ...]], Any]
    program: Any


def quick_of(arguments: Arguments, program: Any) -> Quick | None:
    """The quick way to a program that has run before; None where calls like this one need the general way.

    Args:
        arguments: of the call, which has not run yet: it may change them.
        program: a `Replay`.
    """
    tensors = arguments.own
    if not arguments.plain or any(type(t) not in (Tensor, torch.nn.Parameter) for t in tensors):
        return None
    specs = [buffer_of(t).spec for t in tensors]
    if buffers_of(tensors, specs) is None:
        return None
    return Quick(ambient(), private.guard_of(tensors), program.quick_call(specs), program)


def added(quick: Quick, known: Sequence[Quick]) -> tuple[Quick, ...]:
    """`known` with one more, which comes first; the oldest go."""
    others = (q for q in known if q.program is not quick.program)
    return (quick, *others)[:MOST]


def buffers_of(tensors: Sequence[Any], specs: list[Spec]) -> list[Any] | None:
    """The buffers of the tensors, if these are whole, share no memory and have no user attributes."""
    buffers = list(map(_buffer_of, map(_storage_of, tensors)))
    if list(map(_spec_of, buffers)) != specs or any(map(_attributes_of, tensors)):
        return None
    return None if len(buffers) > 1 and len(set(map(id, buffers))) < len(buffers) else buffers


def run_of(
    specs: list[Spec], forward: Callable[..., Any], record: Any, leaf: Fresh, maker: Any
) -> Callable[[tuple[Any, ...]], Any]:
    """A call of a program that takes its arguments' arrays and gives one tensor, checked as `buffers_of` does.

    It is one function, without loops: these would take half of the time of a small call.

    Args:
        specs: of the arguments' buffers.
        forward: runs the program.
        record: of the program, which counts its runs.
        leaf, maker: what `wrap_result` takes.
    """
    names: dict[str, Any] = {f"s{i}": spec for i, spec in enumerate(specs)}
    names |= {
        "STALE": STALE,
        "DONATED_ERRORS": DONATED_ERRORS,
        "tracing": tracing,
        "wrap_result": wrap_result,
    }
    names |= {"forward": forward, "record": record, "leaf": leaf, "maker": maker}
    count = range(len(specs))
    differs = ["tracing.depth"]  # somebody traces or watches, maybe in another thread
    differs += [f"b{i}.spec is not s{i} or t{i}.__dict__" for i in count]
    if len(specs) > 1:
        differs.append(f"len({{{', '.join(f'id(b{i})' for i in count)}}}) < {len(specs)}")
    lines = [
        "def call_of(args):",
        f"    {''.join(f't{i}, ' for i in count)} = args",
        *(f"    b{i} = t{i}.untyped_storage().buffer" for i in count),
        f"    if {' or '.join(differs)}: return STALE",
        # The general way says why, or waits for a thread that writes to an argument.
        f"    try: done = forward({', '.join(f'b{i}.array' for i in count)})",
        "    except DONATED_ERRORS: return STALE",
        "    record.calls += 1",
        "    return wrap_result(leaf, done[0], maker)",
    ]
    exec("\n".join(lines), names)
    call_of: Callable[[tuple[Any, ...]], Any] = names["call_of"]
    return call_of
