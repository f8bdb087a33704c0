"""The hot path in C++ (`native/`): what it is told about the engine and about each program.

A kernel of `native/kernel.h` is a table of known calls before the general path. It knows a call by everything that the
key of `call.py` holds. After a call that it does not know it asks here which program ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from ..base.options import config
from ..lowerings.registry import Lowering
from ..native import loading
from ..programs import program_cache, site, tracing
from ..storage import placement
from ..storage.buffer import Buffer
from ..storage.pending import CLASSES
from . import deferring
from .executable import Executable
from .numbers import Scalar, check_bounds
from .results import Returned, list_of, nothing, plain_structure, single, tuple_of
from .schema import Arguments, Kernel, Signature

if TYPE_CHECKING:
    from .parts import Part
    from .program import Program


@runtime_checkable
class Programmed(Protocol):
    """What runs each call by programs that depend on its key alone: an `Operation`.

    Attributes:
        is_factory: it takes no tensor.
        kinds: of its arguments, as in `schema.py`; none if they are by value (`call.kind_by_value`).
    """

    is_factory: bool
    kinds: tuple[int, ...]
    signature: Signature
    lowering: Lowering

    def general(self, *args: object, **kwargs: object) -> object:
        """Any call."""

    def program_of(self, args: Arguments) -> Program | None:
        """The program of a call, if it was built before."""

    def parts_of(self, args: Arguments) -> list[Part]:
        """The parts of a call over long lists; none if it is one program."""

    def program_of_part(self, part: Part) -> Program | None:
        """The program of a part, if it was built before."""


# The order is that of `Structure` in `native/program.h`.
_STRUCTURES: list[object] = [nothing, single, tuple_of, list_of]


@loading.when_loaded
def _connect(calls: ModuleType) -> None:
    calls.configure(
        Buffer,
        Executable,
        vars(tracing),
        vars(placement),
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
            return wrapped(operation), None, (), (), False, _refused
        general = wrapped(operation.general)
        if operation.is_factory or operation.lowering.random:
            return general, None, (), (), False, _refused
        signature = operation.signature
        kinds, writes = bytes(operation.kinds), bool(signature.written)
        describe = partial(_described, operation)
        return general, kinds, signature.names, signature.defaults, writes, describe

    def wrapped(general: Any) -> Kernel:
        kernel: Kernel = general if around is None else around(general)
        return kernel

    assert loading.calls is not None
    kernel: Kernel = loading.calls.Kernel(resolve)
    return kernel


def _refused(*args: object) -> bool:
    return False


def _described(
    operation: Programmed, *args: object, **kwargs: object
) -> tuple[object, ...] | bool | None:
    """What runs a call, for `Known::from`; None: it is not known yet; False: only the general path runs it."""
    if kwargs:
        args = operation.signature.complete(args, kwargs)
    parts = operation.parts_of(args)
    if not parts:
        program = operation.program_of(args)
        return None if program is None else _known(program.results.structure, [(program, None)])
    programs = [(operation.program_of_part(part), part) for part in parts]
    built = [(program, part) for program, part in programs if program is not None]
    if len(built) < len(parts):
        return None
    return _known(nothing if operation.signature.written else list_of, built)


def _known(
    structure: object, programs: Sequence[tuple[Program, Part | None]]
) -> tuple[object, ...] | bool:
    """Programs, and how the call returns their results."""
    indices: tuple[int, ...] = ()
    if isinstance(structure, Returned):
        indices, structure = structure.indices, structure.structure
    if structure is plain_structure:
        structure = single if len(programs[0][0].results.leaves) == 1 else tuple_of
    takes = all(program.simple or program.recordable for program, _ in programs)
    if not takes or structure not in _STRUCTURES:
        return False
    parts = tuple(
        (
            description(program),
            *((part.tensors, part.numbers, part.positions) if part is not None else (None,) * 3),
        )
        for program, part in programs
    )
    return _STRUCTURES.index(structure), indices, parts


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
        tuple((i, float(low), float(high)) for i, low, high, _ in program.template.bounds),
        partial(_check, program),
        program.recordable,
        leaves,
        tuple(zip(program.targets, program.new_specs, strict=True)),
        program.origin,
    )
