"""Python code that runs in the middle of captured code and is not part of it.

Python runs the body of a module once, at its first import. What it reads and changes does not matter, and the tensors
and arrays that it creates outlive the trace. So it runs on values. The garbage collector runs its callbacks at any
moment. Until either ends, the recorder records nothing, whatever other functions are called.
"""

from __future__ import annotations

import importlib
import types
from contextlib import ExitStack

import jax

from ...programs import tracing, width

# Python calls this for each module that is not loaded yet.
FIND_AND_LOAD: types.CodeType = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]  # private


class Interludes:
    """The import or the callback that runs, if any.

    Attributes:
        frame: of the outermost one.
    """

    def __init__(self) -> None:
        self.frame: types.FrameType | None = None
        self._contexts = ExitStack()

    def begin_import(self, frame: types.FrameType) -> None:
        """An import begins: leave the trace."""
        self.frame = frame
        self._contexts.enter_context(tracing.outside())
        self._contexts.enter_context(jax.enable_x64(width.of_user()))
        self._contexts.enter_context(jax.ensure_compile_time_eval())

    def begin_callback(self, frame: types.FrameType) -> None:
        """A callback of the garbage collector begins, perhaps in the middle of JAX's code, whose state must stay."""
        self.frame = frame

    def note(self, frame: types.FrameType, event: str) -> None:
        """Something happens meanwhile: enter the trace again if it is the end."""
        if frame is self.frame and event == "return":
            self.end()

    def end(self) -> None:
        """Enter the trace again."""
        self.frame = None
        self._contexts.close()
