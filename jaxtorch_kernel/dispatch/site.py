"""Where in the user's code a call came from."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType

_LIBRARIES = tuple(
    {os.path.realpath(sysconfig.get_path(p)) for p in ("stdlib", "purelib", "platlib")}
    | {sysconfig.get_path(p) for p in ("stdlib", "purelib", "platlib")}
)
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def user_frame() -> FrameType | None:
    """The innermost frame that belongs to no installed library: the user's cell or script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_LIBRARIES, _OWN, "<frozen")):
            return frame
        frame = frame.f_back
    return None


def user_line() -> str:
    """ " (in cell or file, line n)", or nothing where no user code is on the stack."""
    frame = user_frame()
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    if "ipykernel_" in name or name.startswith("<ipython-input"):
        name = "this cell"
    return f" (called in {name}, line {frame.f_lineno})"


def printing() -> bool:
    """Whether torch is formatting a tensor: its dozen small operators are not worth a compilation each."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("_tensor_str.py"):
            return True
        frame = frame.f_back
    return False
