"""`torch.UntypedStorage` on the device, which saving, loading and `copy.deepcopy` use.

A Storage on the device owns no memory; its data is the Buffer attached to it (`storage/buffer.py`). torch's C++ would
read at its address, or allocate without an allocator, and crash. So this module implements the methods below for the
device, and calls torch's methods for other devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..base import torch_private as private
from ..programs import untraceable
from ..storage.arrays import in_host_memory
from ..storage.buffer import Buffer, attach, attached
from ..storage.dtypes import to_numpy
from ..storage.transfer import host_values, put

UntypedStorage = torch.UntypedStorage
_Base = private.StorageBase


def _new(
    cls: type[UntypedStorage],
    *args: Any,
    device: torch.device | str | int | None = None,
    **kwargs: Any,
) -> UntypedStorage:
    if device is None:
        return _Base.__new__(cls, *args, **kwargs)
    device = torch.device(device)
    if device.type != "jax":
        return _Base.__new__(cls, *args, device=device, **kwargs)
    content = args[0] if args else kwargs.pop("size", 0)
    if isinstance(content, int):
        return _from_bytes(in_host_memory(lambda: np.zeros(content, np.uint8)))
    return _from_bytes(np.array(list(content), np.uint8))


def _from_bytes(content: np.ndarray) -> UntypedStorage:
    """A Storage on the device over a uint8 array that nothing else writes to."""
    array, spec = put(content)
    return storage_over(spec.buffer(array, spec))


def storage_over(buffer: Buffer) -> UntypedStorage:
    """A Storage of the true size over a buffer."""
    return attach(private.make_storage(buffer.spec.nbytes), buffer)


def sized(storage: UntypedStorage) -> UntypedStorage:
    """This Storage, or if it reports fewer bytes than it has (`storage.buffer.wrap`), one of the true size.

    torch cannot resize a Storage of a Python device, and tensors are aliases here if they share a Buffer.
    """
    buffer = attached(storage)
    if buffer is not None and private.reported_bytes(storage) < buffer.spec.nbytes:
        return storage_over(buffer)
    return storage


def _nbytes(self: UntypedStorage) -> int:
    # The C++ object of a result reports 0 bytes (`storage.buffer.wrap`). The size of a fake tensor is symbolic and must
    # stay so: an `int` here would make Dynamo recompile for each size.
    buffer = attached(self)
    return _Base.nbytes(self) if buffer is None else buffer.spec.nbytes


def _len(self: UntypedStorage) -> int:
    return int(_nbytes(self))


def _clone(self: UntypedStorage) -> UntypedStorage:
    buffer = attached(self)
    if buffer is None:
        return _clone_of_torch(self)
    # The two share the array until one of them is written, which makes a copy (`programs/atomic.py: own`).
    return storage_over(buffer.spec.buffer(buffer.array, buffer.spec))


_clone_of_torch = UntypedStorage.clone


def _cpu(self: UntypedStorage) -> UntypedStorage:
    buffer = attached(self)
    if buffer is None:
        return _cpu_of_torch(self)
    untraceable.forbid(buffer.array, "copied to the CPU")
    content = np.array(host_values(buffer.array)).reshape(-1).view(np.uint8)
    return torch.from_numpy(content).untyped_storage()


_cpu_of_torch = UntypedStorage.cpu


def _getitem(self: UntypedStorage, index: int | slice) -> int | UntypedStorage:
    return _getitem_of_torch(_cpu(self) if self.device.type == "jax" else self, index)


_getitem_of_torch = UntypedStorage.__getitem__


def _setitem(self: UntypedStorage, index: int | slice, value: int) -> None:
    if self.device.type != "jax":
        _Base.__setitem__(self, index, value)
        return
    torch.empty(0, dtype=torch.uint8, device="jax").set_(self)[index] = value


def _tolist(self: UntypedStorage) -> list[int]:
    return list(_cpu(self))


def _write_file(self: UntypedStorage, *args: object) -> None:
    _Base._write_file(_cpu(self) if self.device.type == "jax" else self, *args)


def _set_from_file(self: UntypedStorage, *args: object) -> UntypedStorage:
    if self.device.type != "jax":
        return _Base._set_from_file(self, *args)
    buffer = attached(self)
    assert buffer is not None
    host = UntypedStorage(_nbytes(self))
    _Base._set_from_file(host, *args)
    content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(host).numpy().copy()
    buffer.write(*put(content.view(buffer.spec.dtype).reshape(buffer.spec.shape)))
    return self


def _resize(self: UntypedStorage, size: int) -> UntypedStorage:
    if self.device.type != "jax":
        return _Base.resize_(self, size)
    raise RuntimeError(
        "a Storage on the jax device has a fixed size: use `tensor.resize_(...)`, or create a new tensor"
    )


_METHODS = {
    "__new__": staticmethod(_new),
    "__len__": _len,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "nbytes": _nbytes,
    "size": _nbytes,
    "clone": _clone,
    "cpu": _cpu,
    "tolist": _tolist,
    "resize_": _resize,
    "_set_from_file": _set_from_file,
    "_write_file": _write_file,
}


def install() -> None:
    """Give `torch.UntypedStorage` the methods."""
    for name, method in _METHODS.items():
        setattr(UntypedStorage, name, method)


def adopt(buffer: Buffer, dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Convert a buffer of bytes to the dtype and shape of the first tensor that covers it.

    A loaded Storage has only bytes. As views, its tensors would reinterpret them at each use.
    """
    new = to_numpy(dtype)
    if buffer.spec.dtype != np.uint8 or new == np.uint8:
        return
    if math.prod(shape) * new.itemsize == buffer.spec.nbytes:
        content = np.array(host_values(buffer.array)).reshape(-1).view(new)
        buffer.write(*put(content.reshape(shape)))
