"""Frames of user code, and the code of torch's methods that the recorder treats as one read."""

from __future__ import annotations

import dis
import inspect
import os
import types
from collections.abc import Callable

import torch

from ...programs.site import is_user_file
from .reads import ATTRIBUTE, reads_of


def user_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame of user code, from this frame outwards."""
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line(frame: types.FrameType) -> tuple[str | None, int | None]:
    """File and line of user code, for an error."""
    caller = user_frame(frame)
    return (None, None) if caller is None else (caller.f_code.co_filename, caller.f_lineno)


def increments(frame: types.FrameType | None, name: str) -> bool:
    """Whether a frame is at the assignment of a statement, in code that increments an attribute of this name."""
    if frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]] != "STORE_ATTR":
        return False
    steps = [increment.target.steps[-1:] for increment in reads_of(frame.f_code).increments]
    return ((ATTRIBUTE, name),) in steps


def _code(function: Callable[..., object]) -> types.CodeType:
    code: types.CodeType = inspect.unwrap(function).__code__
    return code


# The methods of a module that read all of its tree.
READ_ALL = frozenset(
    _code(getattr(torch.nn.Module, name))
    for name in ("_named_members", "named_modules", "named_children", "state_dict", "_apply")
)
_JAXTORCH = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def is_own(frame: types.FrameType) -> bool:
    """Whether a frame runs code of this package."""
    return frame.f_code.co_filename.startswith(_JAXTORCH)


READ_STATE = [
    _code(getattr(torch.optim.Optimizer, name)) for name in ("state_dict", "__getstate__")
]
OPTIMIZER = [
    _code(getattr(torch.optim.Optimizer, name)) for name in ("zero_grad", "_optimizer_step_code")
]
