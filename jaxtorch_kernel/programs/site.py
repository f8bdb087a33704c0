"""The line of user code that made a call."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Any


def _folders(*schemes: str) -> tuple[str, ...]:
    named = {sysconfig.get_path(scheme) for scheme in schemes}
    return tuple(path + os.sep for path in named | set(map(os.path.realpath, named)))


_INSTALLED = _folders("purelib", "platlib")
_STDLIB = _folders("stdlib", "platstdlib")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What installers call a folder of packages: also the user's own, the system's, Debian's (which Colab uses).
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def package_of(file: str) -> str | None:
    """The top-level name of the installed package that a file belongs to; None of the user's and Python's own files.

    Example:
        >>> package_of("/usr/lib/python3/dist-packages/yaml/loader.py")
        'yaml'
        >>> package_of("/home/me/train.py") is None
        True
    """
    parts = _PACKAGES.split(file)
    rest = parts[-1] if len(parts) > 1 else None
    for folder in _INSTALLED if rest is None else ():
        if file.startswith(folder):
            rest = file.removeprefix(folder)
    return None if rest is None else re.split(r"[/\\.]", rest, maxsplit=1)[0]


def is_stdlib_file(file: str) -> bool:
    """Whether a file is of Python's standard library."""
    return file.startswith(_STDLIB) and package_of(file) is None


# Whether a file is the user's, by name: most walks end at the first frame, and every walk is on the hot path.
_is_user: dict[str, bool] = {}


def _user_file(name: str) -> bool:
    is_python = name.startswith((_OWN, "<frozen")) or is_stdlib_file(name)
    found = _is_user[name] = not is_python and package_of(name) is None
    return found


def is_user_file(name: str) -> bool:
    """Whether a file is of no installed library, nor of Python's or ours."""
    return _is_user[name] if name in _is_user else _user_file(name)


def origin(program: Any) -> tuple[Any, CodeType, int] | None:
    """The operator that computes a buffer, and the innermost line outside installed libraries that called it.

    None under a backward pass, whose thread has no Python frames.
    """
    try:
        frame: FrameType | None = sys._getframe(2)
    except ValueError:
        return None
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if _is_user[name] if name in _is_user else _user_file(name):
            return program, code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(code: CodeType, instruction: int) -> int:
    """The line of an instruction (an offset in bytes, as `f_lasti`)."""
    for first, last, line in code.co_lines():
        if first <= instruction < last and line is not None:
            return line
    return code.co_firstlineno


def own_first() -> bool:
    """Whether the innermost frame that is not a library's is the engine's, and not the user's."""
    frame: FrameType | None = sys._getframe(1)
    left = False  # the module that asks
    while frame is not None:
        name = frame.f_code.co_filename
        own = name.startswith(_OWN)
        if own and left:
            return True
        if not own and is_user_file(name):
            return False
        left = left or not own
        frame = frame.f_back
    return False


def site_of(found: tuple[Any, CodeType, int]) -> tuple[str, int]:
    """File and line of what `origin` found."""
    return found[1].co_filename, line_of(*found[1:])


def describe(code: CodeType, instruction: int) -> str:
    """ " (called in this cell, line n)"."""
    name = code.co_filename
    if "ipykernel_" in name or name.startswith("<ipython-input"):
        name = "this cell"
    return f" (called in {name}, line {line_of(code, instruction)})"


def user_line() -> str:
    """ " (called in this cell, line n)" of the call that is running, or nothing without user code on the stack."""
    found = origin(None)
    return "" if found is None else describe(*found[1:])


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
