"""The device guard, through which torch's C++ switches devices and streams.

torch implements the guard of a Python backend in C++ and calls one Python method, `type_`. Autograd's engine switches
streams around every node. If a hook raises, C++ unwinds past that switch while Python's error is still set; the call
of `type_` then fails inside a function that may not throw, and the process terminates. So switching streams, which
does nothing on this device, must not call Python. torch already has a C++ guard that does nothing, that of the meta
device: `switch_streams_in_cpp` copies its `exchangeStream` into the virtual function table of this device's guard.

The position in that table is found by counting the virtual functions in the header that torch ships. If the header is
missing, or the tables have a different layout (Windows), the guard is left unchanged.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import struct
import sys
from pathlib import Path
from typing import Any, cast

import torch

from ..base import torch_naming as private

_DEVICES = private.DeviceType


class Guard(private.DeviceGuard):
    """The guard that torch registers for the device."""

    # A function written in C. C++ that must not throw calls it for every node of a graph, and Python bytecode could
    # raise a KeyboardInterrupt there (`interrupts.py`).
    type_: Any = itertools.repeat(_DEVICES.PrivateUse1).__next__


_FUNCTION = "exchangeStream"
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_WORD = struct.calcsize("P")
_BEFORE = 2  # words of a table before its first function: an offset, and the type's description
_table: Any = None  # this device's; torch's C++ reads it until the process ends


def virtual_functions(header: str) -> list[str]:
    """The names of the virtual functions that a C++ header declares, in their order in the table.

    >>> virtual_functions("virtual int f(int) const = 0; // not virtual: g()\\n virtual ~C() = default;")
    ['f', '~C']
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", header, flags=re.S)
    return re.findall(r"\bvirtual\b[^;{(]*?(~?\w+)\s*\(", code)


def _find_position() -> tuple[int, int] | None:
    """The position of `exchangeStream` in the table, and the number of functions in the table."""
    header = Path(torch.__path__[0], "include/c10/core/impl/DeviceGuardImplInterface.h")
    try:
        functions = virtual_functions(header.read_text())
    except OSError:
        return None
    if functions.count(_FUNCTION) != 1 or not functions[-1].startswith("~"):
        return None
    return functions.index(_FUNCTION), len(functions) + 1  # a destructor takes two entries


def switch_streams_in_cpp() -> bool:
    """Make the guard switch streams in C++. Call once, before the first tensor. Returns whether it does."""
    global _table
    if _table is not None:
        return True
    name = {"linux": "libc10.so", "darwin": "libc10.dylib"}.get(sys.platform)
    position = _find_position()
    if name is None or position is None:
        return False
    index, length = position
    library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", name)))
    number = int(cast(Any, _DEVICES.PrivateUse1))
    guards = (ctypes.c_void_p * (number + 1)).in_dll(library, _REGISTRY)
    ours, meta = guards[number], guards[int(cast(Any, _DEVICES.Meta))]
    if ours is None or meta is None:
        return False
    # An object begins with the address of its table's first function.
    pointer = ctypes.c_void_p.from_address(ours)
    functions_of_meta = ctypes.c_void_p.from_address(meta).value
    assert pointer.value is not None
    assert functions_of_meta is not None
    table_type = ctypes.c_void_p * (_BEFORE + length)
    _table = table_type.from_buffer_copy(table_type.from_address(pointer.value - _BEFORE * _WORD))
    _table[_BEFORE + index] = (ctypes.c_void_p * length).from_address(functions_of_meta)[index]
    pointer.value = ctypes.addressof(_table) + _BEFORE * _WORD
    return True
