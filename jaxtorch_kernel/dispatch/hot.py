"""The hot path: one eager call.

A cached call must be about as fast as a jitted JAX call, so this only builds a key, looks it up and calls the
executable. It handles the most common calls: tensors (including views), at most one number as the last argument, and
one result. All other calls, and every cache miss, go to `Operation.general` (`operation.py`), which builds the same
key. Where the compiled module is there (`native/`), it takes the place of this function, and takes more calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..base import torch_private as private
from ..base.jax_private import FAILURES
from ..base.options import config
from ..native import loading
from ..programs import tracing
from ..programs.atomic import was_replaced
from ..programs.errors import explain_call
from ..programs.site import origin
from ..programs.writes import DONATED_ERRORS
from ..storage.buffer import buffer_of, geometry
from . import deferring
from .native_calls import native_kernel
from .schema import Kernel

if TYPE_CHECKING:
    from .operands import Operand
    from .program import Program

# The kinds of numbers in keys. A bool is a static argument: "" is in no key, so it leads to the general path.
LETTERS = {int: "i", float: "f", complex: "c", bool: ""}
_letter_of = LETTERS.get
_default_dtype = torch.get_default_dtype
_precision = torch.get_float32_matmul_precision
_create = private.create_empty_tensor


def hot_path(
    find: Callable[[], Kernel], around: Callable[[Kernel], Kernel] | None = None
) -> Kernel:
    """The kernel that torch calls: compiled (`native_calls.py`), or else in Python.

    Args:
        find: makes the Operation at the first call: making all two thousand at once would take 100 ms. For a view, or
            an operator that runs by decomposition or on the CPU, it returns a plain function.
        around: wraps what runs a call, for tensors that are lazily conjugated or negated.
    """
    if loading.calls is not None:
        return native_kernel(find, around)
    inner, exchange = _in_python(find)
    kernel = inner if around is None else around(inner)

    def compiled() -> Kernel:
        made = native_kernel(find, around)
        exchange(made)
        return made

    vars(kernel)[_COMPILED] = compiled
    _in_python_now.add(kernel)
    return kernel


# The attribute of a kernel in Python that makes it pass its calls to a compiled one, or is that one. An attribute,
# because both hold the kernel's Operation, which holds the kernel: a table would keep all of them.
_COMPILED = "compiled"
# The kernels in Python that still run calls themselves.
_in_python_now: weakref.WeakSet[Kernel] = weakref.WeakSet()


@loading.when_loaded
def _exchange(_: ModuleType) -> None:
    while _in_python_now:
        attributes = vars(_in_python_now.pop())
        attributes[_COMPILED] = attributes[_COMPILED]()


def successor_of(kernel: Kernel) -> Kernel:
    """The compiled kernel that one in Python passes its calls to; itself if there is none."""
    found: Kernel = getattr(kernel, _COMPILED, kernel)
    return found


def _in_python(find: Callable[[], Kernel]) -> tuple[Kernel, Callable[[Kernel], None]]:
    """The hot path in Python, and what exchanges it for another.

    It is a closure, because reading an attribute of `self` takes 30 ns and a method adds a frame.
    """
    general: Kernel | None = None
    programs: dict[tuple[object, ...], Program] = {}
    numeric: frozenset[int] = frozenset()
    is_general = True

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal general, programs, numeric, is_general
        if general is None:
            operation = find()
            programs = getattr(operation, "ready", programs)
            numeric = getattr(operation, "numeric", numeric)
            is_general = getattr(operation, "is_general", True)
            general = getattr(operation, "general", operation)
        if is_general or kwargs or tracing.depth:
            return general(*args, **kwargs)
        recorder = deferring.recorder
        key: list[object] = [
            config._base if not config._open else config.options(),
            _default_dtype(),
            _precision(),
        ]
        # While calls are recorded, these are the buffers: reading an array would run what was recorded.
        operands: list[Operand] = []
        # Check the type before reading an attribute: an AttributeError takes 2 µs.
        letter = _letter_of(args[-1].__class__)
        try:
            for a in args if letter is None else args[:-1]:
                buffer = a.untyped_storage().buffer
                operands.append(buffer.array if recorder is None else buffer)
                key.append(geometry(a, buffer))
        except AttributeError:  # an argument is not a tensor of the device
            letter = ""  # the general path. Not called here: what it raises would have this error as its context
        if letter is not None:
            if len(operands) not in numeric:
                return general(*args)
            key.append(letter)
        program = programs.get(tuple(key))
        if program is None:
            return general(*args)
        if recorder is not None:
            made = recorder.hot(program, args, operands, letter)  # type: ignore[arg-type]  # its operands are buffers
            return general(*args) if made is NotImplemented else made
        if not program.quick or program.only is None:
            return general(*args)
        if not program.plain and not program.operands.add_known(operands, args):
            return general(*args)
        try:
            (out,) = program.executable.call(*operands)  # type: ignore[misc]  # compiled, because it is quick
        except DONATED_ERRORS as error:
            buffers = [buffer_of(a) for a in args if isinstance(a, torch.Tensor)]
            if was_replaced(buffers, operands):
                return kernel(*args)
            if not isinstance(error, FAILURES):
                raise
            raise explain_call(error, program.name, buffers) from None
        leaf = program.only
        result = _create(leaf.size, leaf.dtype)
        spec = leaf.spec
        result.untyped_storage().buffer = spec.buffer(out, spec, origin(leaf))  # type: ignore[attr-defined]
        return result

    def exchange(other: Kernel) -> None:
        nonlocal general, is_general
        general, is_general = other, True

    return kernel, exchange
