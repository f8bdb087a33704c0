"""Errors for code that cannot be captured. Each message says what happened, where, and what to write instead."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import torch

from ..programs import tracing
from ..programs.site import _user_file, place, user_files
from ..programs.untraceable import Untraceable


class CaptureError(RuntimeError):
    """Torch code that `pure` or `jit` cannot capture. `line` is the user's line, `file` its file."""

    def __init__(self, what: str, advice: str, file: str | None = None, line: int | None = None):
        super().__init__()
        self.what, self.advice = what, advice
        self.set_location(file, line)
        trace = tracing.current() if tracing.depth else None
        if trace is not None:
            trace.note_refusal(self)

    def set_location(self, file: str | None, line: int | None) -> None:
        """Set the file and line, and put them into the message."""
        self.file, self.line = file, line
        where = f" ({place(file, line)})" if file is not None and line is not None else ""
        self.args = (f"{self.what}{where}. {self.advice}",)


class MakesParameters(CaptureError):
    """The code creates parameters that outlive the call, as a lazy module does. Such a call runs as plain Python."""

    def __init__(self, path: str, file: str | None = None, line: int | None = None):
        super().__init__(
            f"the captured code creates parameters and stores them in `{path}`",
            "Run it once as plain Python first, so that they exist.",
            file,
            line,
        )


def user_frame(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame of the user's own code in an error's traceback."""
    innermost: tuple[str | None, int | None] = None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if user_files[name] if name in user_files else _user_file(name):
            innermost = name, line
    return innermost


_VALUE = (
    "A captured program must work for all values: select with torch.where or torch.cond, keep the value in a tensor, "
    "or move this line outside the captured code"
)


_VALIDATION = "The distribution checks values because of validate_args=True: pass validate_args=False, or leave it out."
_DISTRIBUTIONS = os.path.dirname(torch.distributions.__file__)


@contextmanager
def explained(function: Callable[..., object]) -> Iterator[None]:
    """Turn an error of the trace into a `CaptureError` that says what to write instead."""
    try:
        yield
    except CaptureError as error:
        if error.file is None:
            error.set_location(*user_frame(error))
        raise
    except Untraceable as error:
        if error.advice:
            raise CaptureError(str(error), error.advice, *user_frame(error)) from None
        raise _value_needed(str(error).rstrip("."), error) from None
    except jax.errors.ConcretizationTypeError as error:
        raise _value_needed("the code asked for the value of a tensor", error) from None


def _value_needed(what: str, error: BaseException) -> CaptureError:
    location = user_frame(error)
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    validates = any(
        code.co_name in ("__init__", "_validate_sample")
        and code.co_filename.startswith(_DISTRIBUTIONS)
        for code in codes
    )
    advice = _VALIDATION if validates else _VALUE + "."
    # The new error keeps a reference to this one, and so to the frames of torch's printing, where a local variable
    # disables torch.func: nested transforms would give wrong results as long as a shell remembers the error.
    traceback.clear_frames(error.__traceback__)
    return CaptureError(what, advice, *location)


def write_refused(what: str) -> CaptureError:
    """The error for a write that `pure` does not allow."""
    return CaptureError(
        f"pure code writes to {what}, which existed before the call",
        "Return the new value instead, or use jit (%%jit), which writes it back.",
    )


def warn_of_constant(what: str, file: str, line: int) -> None:
    """Warn that the code does something that a program cannot repeat."""
    warnings.warn_explicit(
        f"captured code {what}: the current value becomes a constant of the program. Pass it as an argument.",
        UserWarning,
        file,
        line,
    )
