"""The line of user code that made a call."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Callable
from types import CodeType, FrameType

from ..storage.buffer import Named, Origin


def _folders(*schemes: str) -> tuple[str, ...]:
    named = {sysconfig.get_path(scheme) for scheme in schemes}
    return tuple(path + os.sep for path in named | set(map(os.path.realpath, named)))


_INSTALLED = _folders("purelib", "platlib")
_STDLIB = _folders("stdlib", "platstdlib")
_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The folders that installers put packages in: an environment's, the user's, the system's, and Debian's (used by Colab).
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")


def package_of(file: str) -> str | None:
    """The top-level name of the installed package that a file belongs to; None for files of the user and of Python.

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
    """Whether a file belongs to Python's standard library."""
    return file.startswith(_STDLIB) and package_of(file) is None


# Whether a file is the user's, by name. It is looked up on the hot path, where most walks end at the first frame.
user_files: dict[str, bool] = {}


def _user_file(name: str) -> bool:
    is_python = name.startswith((_ENGINE, "<frozen")) or is_stdlib_file(name)
    result = user_files[name] = not is_python and package_of(name) is None
    return result


def is_engine_file(name: str) -> bool:
    """Whether a file belongs to jaxtorch."""
    return name.startswith(_ENGINE + os.sep)


def is_user_file(name: str) -> bool:
    """Whether a file belongs to the user: not to an installed library, Python, or jaxtorch."""
    return user_files[name] if name in user_files else _user_file(name)


def origin(program: Named | None) -> Origin | None:
    """A program with the innermost line of user code that is calling it.

    None in a backward pass, whose thread has no Python frames.
    """
    try:
        frame: FrameType | None = sys._getframe(2)
    except ValueError:
        return None
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if user_files[name] if name in user_files else _user_file(name):
            return program, code, frame.f_lasti
        frame = frame.f_back
    return None


def line_of(code: CodeType, instruction: int) -> int:
    """The line of an instruction (an offset in bytes, as `f_lasti`)."""
    for first, last, line in code.co_lines():
        if first <= instruction < last and line is not None:
            return line
    return code.co_firstlineno


def called_by_engine() -> bool:
    """Whether the innermost frame outside libraries is one of jaxtorch, and not the user's."""
    frame: FrameType | None = sys._getframe(1)
    left = False  # whether the walk has left the module that calls this function
    while frame is not None:
        name = frame.f_code.co_filename
        in_engine = name.startswith(_ENGINE)
        if in_engine and left:
            return True
        if not in_engine and is_user_file(name):
            return False
        left = left or not in_engine
        frame = frame.f_back
    return False


def site_of(caller: Origin) -> tuple[str, int]:
    """File and line of a call that `origin` returned."""
    _, code, instruction = caller
    return code.co_filename, line_of(code, instruction)


# Each maps the file of a notebook's cell to the cell's execution count. The IPython extension sets it.
cell_of_file: list[Callable[[str], int | None]] = []
# Each maps the file of a cell to the lines that were typed, where Python runs others (`%magic`, `!ls`).
typed_lines: list[Callable[[str], list[str] | None]] = []
_CELL = re.compile(r"<ipython-input-(\d+)-")


def cell_number(file: str) -> int | None:
    """The execution count of the notebook cell with this file name; None if the file is not a cell."""
    for number in cell_of_file:
        cell = number(file)
        if cell is not None:
            return cell
    named = _CELL.match(file)
    return int(named[1]) if named else None


def lines_of(file: str) -> list[str]:
    """The lines of a file or cell as the user wrote them, without line ends; none if it cannot be read."""
    return [line.rstrip("\n") for line in _typed(file) or linecache.getlines(file)]


def text_at(file: str, line: int) -> str:
    """One of `lines_of`, without its indentation; "" if there is none."""
    lines = _typed(file) or linecache.getlines(file)
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""


def _typed(file: str) -> list[str] | None:
    return next((lines for typed in typed_lines if (lines := typed(file)) is not None), None)


def place(file: str, line: int) -> str:
    """A line of code in a message: as IPython writes it if the file is a cell.

    Example:
        >>> place("/home/me/train.py", 3)
        '/home/me/train.py, line 3'
        >>> place("<ipython-input-7-9853dc070f12>", 3)
        'Cell In[7], line 3'
    """
    cell = cell_number(file)
    return f"{file if cell is None else f'Cell In[{cell}]'}, line {line}"


def describe(code: CodeType, instruction: int) -> str:
    """ " (called in Cell In[3], line n)"."""
    return f" (called in {place(code.co_filename, line_of(code, instruction))})"


def user_line() -> str:
    """ " (called in Cell In[3], line n)" of the call that is running, or nothing without user code on the stack."""
    caller = origin(None)
    return "" if caller is None else describe(*caller[1:])


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of user code, whose file and line are shown; `stacklevel` would count our frames."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:  # in a backward pass, whose thread has no Python frames
        warnings.warn(message, category, stacklevel=2)
        return
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__", "<unknown>"),
        names.setdefault("__warningregistry__", {}),  # once for each line, as `warnings.warn`
    )


def printing() -> bool:
    """Whether torch is formatting a tensor: it is not worth compiling the dozen small operators."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("_tensor_str.py"):
            return True
        frame = frame.f_back
    return False
