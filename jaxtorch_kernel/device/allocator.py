"""An allocator that always raises an error, because torch's C++ must not allocate memory of the device.

The Storages of the device own no memory. C++ asks for an allocator in one case: `torch.UntypedStorage(n, device="jax")`
is the first use of the device, so the call has reached C++ before `extensions.py` replaces the constructor. Without an
allocator C++ would call a null pointer, which ends the process.

The allocator is an object with a table of virtual functions, built in memory with ctypes. Every entry of the table is
`throwNullDataPtrError`, which raises a RuntimeError. The description of its type is copied from the meta device's
allocator.
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
_FUNCTIONS = 16  # more virtual functions than an allocator has
_made: list[Any] = []  # keeps alive what torch's C++ reads until the process ends


def install() -> bool:
    """Register the allocator with torch, once. Returns whether this platform allows it."""
    name = {"linux": "libc10.so", "darwin": "libc10.dylib"}.get(sys.platform)
    if name is None or _made:
        return bool(_made)
    library = ctypes.CDLL(str(Path(torch.__path__[0], "lib", name)))
    if not all(hasattr(library, symbol) for symbol in (_GET, _SET, _RAISE)):
        return False
    get, give = getattr(library, _GET), getattr(library, _SET)
    get.restype = ctypes.c_void_p
    give.argtypes, give.restype = [ctypes.c_int8, ctypes.c_void_p, ctypes.c_uint8], None
    meta, private_use = (int(getattr(private.DeviceType, n)) for n in ("Meta", "PrivateUse1"))
    meta_allocator = get(ctypes.byref(ctypes.c_int8(meta)))
    refuse = ctypes.cast(getattr(library, _RAISE), ctypes.c_void_p).value
    # An object begins with the address of its table's first function. Two words precede that function: an offset, and
    # the type's description.
    word = ctypes.sizeof(ctypes.c_void_p)
    functions = ctypes.c_void_p.from_address(meta_allocator).value or 0
    before = (ctypes.c_void_p * 2).from_address(functions - 2 * word)
    table = (ctypes.c_void_p * (2 + _FUNCTIONS))(*before, *[refuse] * _FUNCTIONS)
    allocator = ctypes.c_void_p(ctypes.addressof(table) + 2 * word)
    give(private_use, ctypes.addressof(allocator), 0)
    _made.extend([table, allocator])
    return True
