"""Programs that a target cannot have, as with a Pallas kernel that Mosaic rejects: errors with the user's lines.

There are two places where a kernel fails. JAX lowers it in Python, and keeps the frames of the failing operation in the
cause of its error. Mosaic, a part of libtpu, compiles it in another process, and writes the location of the failing
operation into its message, or the name of the kernel alone if all of it is at fault, as when it needs too much memory.

If neither has a line of the user, the program is searched for the operation that the message names. An operation
inside a function of JAX, such as `jnp.sort`, has the frames of the first call of that function. Then the line of the
present call counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from ..programs.jaxprs import user_line
from ..programs.site import is_user_file, place
from .errors import user_frame
from .tpu import CompileError

_LOCATION = re.compile(r'"([^"\n]+)":(\d+):\d+')  # in MLIR: loc("file":line:column ...)
_OF_A_KERNEL = re.compile(r"Mosaic|Pallas|\bspace=[sv]mem\b")
_OPERATION = re.compile(r"primitive (?:'(\w+)'|.*: (\w+)\.)")
_NO_FILE = "-"  # MLIR's name for text that it read from no file, such as libtpu's own kernels
_KERNELS = ("pallas_call", "ragged_dot_general")  # libtpu has a kernel for the second

_Line: TypeAlias = tuple[str, int]


@contextmanager
def lowering_for(target: str | None, jaxpr: ClosedJaxpr) -> Iterator[None]:
    """Turn an error of JAX's lowering for a target into a CompileError with the user's line."""
    try:
        yield
    except CompileError:
        raise
    except Exception as error:
        if target is None:
            raise
        message = f"the program cannot be lowered for {target}: {type(error).__name__}: {error}"
        file, line = (None, None) if error.__cause__ is None else user_frame(error.__cause__)
        known = [] if file is None or line is None else [(file, line)]
        raise CompileError(_with_lines(message, known or _lines(message, jaxpr))) from None


@contextmanager
def compiling(jaxpr: ClosedJaxpr) -> Iterator[None]:
    """Put the user's lines before the message of a compiler that rejects the program."""
    try:
        yield
    except CompileError as error:
        error.args = (_with_lines(str(error), _lines(str(error), jaxpr)),)
        raise


def _with_lines(message: str, lines: Iterable[_Line]) -> str:
    places = list(dict.fromkeys(place(*line) for line in lines))
    return f"{' and '.join(places)}: {message}" if places else message


def _lines(message: str, jaxpr: ClosedJaxpr) -> list[_Line]:
    """The lines that a message names, those of the operation that it names, or those of all kernels."""
    named = [
        (file, int(line))
        for file, line in _LOCATION.findall(message)
        if file != _NO_FILE and is_user_file(file)
    ]
    if not named and (operation := _OPERATION.search(message)):
        named = list(_calls(jaxpr.jaxpr, operation[1] or operation[2]))
    if not named and _OF_A_KERNEL.search(message):
        own = (list(_calls(jaxpr.jaxpr, kernel)) for kernel in _KERNELS)
        named = next(filter(None, own), [])
    return named


def _calls(jaxpr: Jaxpr, operation: str, caller: _Line | None = None) -> Iterator[_Line]:
    """The lines of the user that lead to an operation of this name."""
    for equation in jaxpr.eqns:
        line = user_line(equation) or caller
        if equation.primitive.name == operation and line is not None:
            yield line
        for inner in jaxprs_in_params(equation.params):
            yield from _calls(inner, operation, line)
