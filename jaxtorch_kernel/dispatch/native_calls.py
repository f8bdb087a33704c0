"""The hot path in C++ (`native/`): what it is told about the engine and about each program.

A kernel of `native/kernel.h` is a table of known calls before the general path. It knows a call by everything that the
key of `call.py` holds. After a call that it does not know it asks here which program ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..base.options import config
from ..native.loading import calls
from ..programs import program_cache, site, tracing
from ..storage.buffer import Buffer
from ..storage.pending import CLASSES
from . import deferring
from .executable import Executable
from .numbers import Scalar, check_bounds
from .results import list_of, single, tuple_of
from .schema import Arguments, Kernel, Signature

if TYPE_CHECKING:
    from .program import Program


@runtime_checkable
class Programmed(Protocol):
    """What runs each call by one program that depends on its key alone: an `Operation`.

    Attributes:
        special: its programs write, draw random numbers, or take no tensor.
        kinds: of its arguments, as in `schema.py`.
    """

    special: bool
    kinds: tuple[int, ...]
    signature: Signature

    def general(self, *args: object, **kwargs: object) -> object:
        """Any call."""

    def program_of(self, args: Arguments) -> Program | None:
        """The program of a call, if it was built before."""


# The order is that of `Structure` in `native/program.h`.
_STRUCTURES: list[object] = [single, tuple_of, list_of]


if calls is not None:
    calls.configure(
        Buffer,
        Executable,
        vars(tracing),
        vars(deferring),
        config,
        site.user_files,
        site.is_user_file,
        np.ndarray,
    )
    program_cache.on_forget.append(calls.forget)


def native_kernel(
    find: Callable[[], Kernel], around: Callable[[Kernel], Kernel] | None = None
) -> Kernel:
    """The compiled kernel of an operator; arguments as for `hot.hot_path`."""

    def resolve() -> tuple[object, ...]:
        operation: object = find()
        if not isinstance(operation, Programmed):
            return wrapped(operation), None, (), (), _refused
        if operation.special:
            return wrapped(operation.general), None, (), (), _refused
        names, defaults = operation.signature.names, operation.signature.defaults
        describe = partial(_described, operation)
        return wrapped(operation.general), bytes(operation.kinds), names, defaults, describe

    def wrapped(general: Any) -> Kernel:
        kernel: Kernel = general if around is None else around(general)
        return kernel

    assert calls is not None
    kernel: Kernel = calls.Kernel(resolve)
    return kernel


def _refused(*args: object) -> bool:
    return False


def _described(
    operation: Programmed, *args: object, **kwargs: object
) -> tuple[object, ...] | bool | None:
    """The program of a call for `Program::from`; None: it is not known yet; False: only the general path runs it."""
    if kwargs:
        args = operation.signature.complete(args, kwargs)
    program = operation.program_of(args)
    if program is None:
        return None
    if not program.simple or program.results.structure not in _STRUCTURES:
        return False
    return description(program)


def _check(program: Program, numbers: tuple[Scalar, ...]) -> None:
    kinded = list(zip(program.operands.kinds, numbers, strict=True))
    check_bounds(program.template.bounds, kinded)


def _strides(size: Sequence[int]) -> tuple[int, ...]:
    """Those of a contiguous tensor as `create_empty_tensor` makes them: a size of 0 does not count as 1."""
    return tuple(math.prod(size[i + 1 :]) for i in range(len(size)))


def description(program: Program) -> tuple[object, ...]:
    """A program as `Program::from` takes it."""
    operands = program.operands
    leaves = tuple(
        None
        if leaf is None
        else (
            tuple(leaf.size),
            leaf.dtype,
            _strides(leaf.size) if leaf.stride is None else tuple(leaf.stride),
            leaf.spec,
            leaf,
            leaf.spec.buffer,
            CLASSES[leaf.spec.buffer],
        )
        for leaf in program.results.leaves
    )
    return (
        program,
        program.executable,
        tuple(i for i, _ in operands.views),
        operands.known_starts,
        operands.known_numbers,
        partial(_check, program) if program.template.bounds else None,
        program.deferrable,
        _STRUCTURES.index(program.results.structure),
        leaves,
    )
