"""What a captured program cannot do, said as one sentence: what, where, and what to write instead."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from ..dispatch.fallback import Untraceable
from ..dispatch.site import _is_user, _user_file


class CaptureError(RuntimeError):
    """Torch code that `pure` or `jit` cannot capture. `line` is the user's line, `file` its file."""

    def __init__(self, what: str, advice: str, file: str | None = None, line: int | None = None):
        super().__init__()
        self.what, self.advice = what, advice
        self.place(file, line)

    def place(self, file: str | None, line: int | None) -> None:
        """Say where it was."""
        self.file, self.line = file, line
        where = f" (line {line} of {file})" if file is not None else ""
        self.args = (f"{self.what}{where}. {self.advice}",)


def user_frame(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame of the user's own code in an error's traceback."""
    found: tuple[str | None, int | None] = None, None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = frame.f_code.co_filename
        if _is_user[name] if name in _is_user else _user_file(name):
            found = name, line
    return found


_VALUE = (
    "A captured program runs for all values: choose with torch.where or torch.cond, keep the value in a tensor, "
    "or leave this line outside"
)


@contextmanager
def explained(function: Callable[..., Any]) -> Iterator[None]:
    """Turn an error of the trace into a `CaptureError` that teaches."""
    try:
        yield
    except CaptureError as error:
        if error.file is None:
            error.place(*user_frame(error))
        raise
    except Untraceable as error:
        if error.advice:
            raise CaptureError(str(error), error.advice, *user_frame(error)) from None
        raise _of_a_value(str(error).rstrip("."), error) from None
    except jax.errors.ConcretizationTypeError as error:
        raise _of_a_value("the code asked for the value of a tensor", error) from None


def _of_a_value(what: str, error: BaseException) -> CaptureError:
    place = user_frame(error)
    # The new error keeps this one, and with it the frames of torch's printing, where a local variable keeps torch.func
    # off: as long as a shell remembers the error, nested transforms would be wrong.
    traceback.clear_frames(error.__traceback__)
    return CaptureError(what, _VALUE + ".", *place)


def written(what: str) -> CaptureError:
    """The error for a write that `pure` does not allow."""
    return CaptureError(
        f"pure code writes to {what}, which was there before the call",
        "Return the new value instead, or use jit (%%jit), which writes it back.",
    )
