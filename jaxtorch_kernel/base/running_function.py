"""Finds the function object that a frame runs.

Python offers no way from a frame to its function. CPython's C structure has one: `PyFrameObject` points to an
interpreter frame, one of whose first words is the function. Which word that is differs between versions, so it is
looked for once, in the frame of a known function. In a version where it is not found, `function_of` searches the
referrers of the code object. That takes a tenth of a second in a large session, does not distinguish functions with
equal closures, and misses functions that `gc.freeze()` has hidden.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types

_WORD = ctypes.sizeof(ctypes.c_void_p)
_POINTER = object.__basicsize__ + _WORD  # PyFrameObject: the header, `f_back`, and then the pointer
_FIRST = 4  # the function is one of the first words of the interpreter frame: 0 in 3.11, 2 in 3.12 and 3.13
_TAGS = 0b11  # Python 3.14 marks pointers in their lowest bits


def _words(frame: types.FrameType) -> list[int]:
    inner = ctypes.c_void_p.from_address(id(frame) + _POINTER).value
    return list((ctypes.c_size_t * _FIRST).from_address(inner)) if inner else []


def _find_index() -> int | None:
    def known() -> list[int]:
        return _words(sys._getframe())

    addresses = [word & ~_TAGS for word in known()]
    return addresses.index(id(known)) if id(known) in addresses else None


_INDEX = _find_index() if sys.implementation.name == "cpython" else None


def function_of(frame: types.FrameType) -> types.FunctionType | None:
    """The function that a frame runs; None if it cannot be found.

    Example:
        >>> def running():
        ...     return function_of(sys._getframe())
        >>> running() is running
        True
    """
    if _INDEX is None:
        return _search(frame)
    address = _words(frame)[_INDEX] & ~_TAGS
    function = ctypes.cast(address, ctypes.py_object).value
    return function if isinstance(function, types.FunctionType) else None


def _search(frame: types.FrameType) -> types.FunctionType | None:
    """A function with the frame's code whose closure holds the values of the frame's variables."""
    code, variables, missing = frame.f_code, frame.f_locals, object()
    for function in gc.get_referrers(code):
        if not isinstance(function, types.FunctionType) or function.__code__ is not code:
            continue
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if all(contents_of(cell, missing) is variables.get(name, missing) for name, cell in cells):
            return function
    return None


def contents_of(cell: types.CellType, missing: object) -> object:
    """The current value of a closure variable; `missing` if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return missing
