"""An allocator that refuses, because the device has none.

torch's C++ asks for one only where `torch.UntypedStorage(n, device="jax")` is the first use of the device: by then the
call is beyond Python (`extensions.py` makes later ones). C++ would call a null pointer, and end the process.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

from ..base import torch_naming as private

_GET = "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"  # c10::GetAllocator(DeviceType const&)
_SET = "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh"  # c10::SetAllocator(...)
_RAISE = "_ZN3c1021throwNullDataPtrErrorEv"  # c10::throwNullDataPtrError(), a RuntimeError
_FUNCTIONS = 16  # more than an allocator has
_made: list[Any] = []  # torch's C++ reads it as long as the process lives


def install() -> bool:
    """Give torch the allocator, once. Returns whether this platform lets us."""
    name = {"linux": "libc10.so", "darwin": "libc10.dylib"}.get(sys.platform)
    if name is None or _made:
        return bool(_made)
    library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", name)))
    if not all(hasattr(library, symbol) for symbol in (_GET, _SET, _RAISE)):
        return False
    get, give = getattr(library, _GET), getattr(library, _SET)
    get.restype = ctypes.c_void_p
    give.argtypes, give.restype = [ctypes.c_int8, ctypes.c_void_p, ctypes.c_uint8], None
    meta, own = (int(getattr(private.DeviceType, n)) for n in ("Meta", "PrivateUse1"))
    found = get(ctypes.byref(ctypes.c_int8(meta)))
    refuse = ctypes.cast(getattr(library, _RAISE), ctypes.c_void_p).value
    # An object begins with the address of its first virtual function; the type's description comes before that.
    word = ctypes.sizeof(ctypes.c_void_p)
    functions = ctypes.c_void_p.from_address(found).value or 0
    before = (ctypes.c_void_p * 2).from_address(functions - 2 * word)
    table = (ctypes.c_void_p * (2 + _FUNCTIONS))(*before, *[refuse] * _FUNCTIONS)
    allocator = ctypes.c_void_p(ctypes.addressof(table) + 2 * word)
    give(own, ctypes.addressof(allocator), 0)
    _made.extend([table, allocator])
    return True
