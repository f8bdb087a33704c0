"""`torch.UntypedStorage` on the device, which saving, loading and `copy.deepcopy` use.

A Storage on the device owns no memory; its data is the Buffer attached to it (`storage/buffer.py`). torch's C++ would
read through its address, or allocate without an allocator, and crash. So this module implements the methods below for
the device, and calls torch's for every other device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..base import torch_private as private

UntypedStorage = torch.UntypedStorage
_Base = private.StorageBase


def _new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    if device is None:
        return _Base.__new__(cls, *args, **kwargs)
    device = torch.device(device)
    if device.type != "jax":
        return _Base.__new__(cls, *args, device=device, **kwargs)
    from ..storage.arrays import in_host_memory

    content = args[0] if args else kwargs.pop("size", 0)
    if isinstance(content, int):
        return _from_bytes(in_host_memory(lambda: np.zeros(content, np.uint8)))
    return _from_bytes(np.array(list(content), np.uint8))


def _from_bytes(content: np.ndarray) -> UntypedStorage:
    """A Storage on the device over a uint8 array without other writers."""
    from ..storage.transfer import put

    storage = private.make_storage(content.nbytes)
    array, spec = put(content)
    storage.buffer = spec.buffer(array, spec)  # type: ignore[attr-defined]
    return storage


def _nbytes(self: UntypedStorage) -> Any:
    # The C++ object of a result reports 0 bytes (`storage.buffer.wrap`). A fake tensor's are symbolic, and stay so:
    # an `int` here would make Dynamo compile anew for each size.
    buffer = getattr(self, "buffer", None)
    return _Base.nbytes(self) if buffer is None else buffer.spec.nbytes


def _len(self: UntypedStorage) -> int:
    return int(_nbytes(self))


def _clone(self: UntypedStorage) -> UntypedStorage:
    buffer = getattr(self, "buffer", None)
    if buffer is None:
        return _clone_of_torch(self)

    # The array is shared: whoever writes first makes its own (`dispatch.operation`).
    storage = private.make_storage(buffer.spec.nbytes)
    storage.buffer = buffer.spec.buffer(buffer.array, buffer.spec)  # type: ignore[attr-defined]
    return storage


_clone_of_torch = UntypedStorage.clone


def _cpu(self: UntypedStorage) -> UntypedStorage:
    buffer = getattr(self, "buffer", None)
    if buffer is None:
        return _cpu_of_torch(self)
    from ..programs import tracing
    from ..storage.transfer import host_values

    tracing.forbid(buffer.array, "copied to the CPU")
    content = np.array(host_values(buffer.array)).reshape(-1).view(np.uint8)
    return torch.from_numpy(content).untyped_storage()


_cpu_of_torch = UntypedStorage.cpu


def _getitem(self: UntypedStorage, index: Any) -> Any:
    return _getitem_of_torch(_cpu(self) if self.device.type == "jax" else self, index)


_getitem_of_torch = UntypedStorage.__getitem__


def _setitem(self: UntypedStorage, index: Any, value: Any) -> None:
    if self.device.type != "jax":
        _Base.__setitem__(self, index, value)
        return
    torch.empty(0, dtype=torch.uint8, device="jax").set_(self)[index] = value


def _tolist(self: UntypedStorage) -> list[int]:
    return list(_cpu(self))


def _write_file(self: UntypedStorage, *args: Any) -> Any:
    return _Base._write_file(_cpu(self) if self.device.type == "jax" else self, *args)


def _set_from_file(self: UntypedStorage, *args: Any) -> UntypedStorage:
    if self.device.type != "jax":
        return _Base._set_from_file(self, *args)
    from ..storage.transfer import put

    host = UntypedStorage(_nbytes(self))
    _Base._set_from_file(host, *args)
    content = torch.empty(0, dtype=torch.uint8, device="cpu").set_(host).numpy().copy()
    buffer = self.buffer  # type: ignore[attr-defined]
    buffer.write(*put(content.view(buffer.spec.dtype).reshape(buffer.spec.shape)))
    return self


def _resize(self: UntypedStorage, size: int) -> Any:
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


def adopt(storage: Any, dtype: torch.dtype, shape: Any) -> None:
    """Give a Storage of bytes the dtype and shape of the first tensor that covers it.

    A loaded Storage knows neither. Views would reinterpret bytes at each use; the array is converted once instead.
    """
    from ..storage.dtypes import to_numpy
    from ..storage.transfer import host_values, put

    buffer = storage.buffer
    wanted = to_numpy(dtype)
    if buffer.spec.dtype != np.uint8 or wanted == np.uint8:
        return
    count = 1
    for n in shape:
        count *= n
    if count * wanted.itemsize == buffer.spec.nbytes:
        buffer.write(
            *put(np.array(host_values(buffer.array)).reshape(-1).view(wanted).reshape(shape))
        )
