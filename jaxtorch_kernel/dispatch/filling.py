"""Tensors of one value, made without a program while calls are few.

`zeros`, `ones`, `full`, their `*_like` and `new_*` forms, `zero_` and `fill_` need a program for each shape, whose
compilation takes 30 ms. Filling a small array on the host and transferring it takes 60 µs. So the first calls with a
key are transfers. Once they have cost about as much as a compilation, a program takes over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Sharding, SingleDeviceSharding

from ..base.torch_private import OpOverload
from ..programs import watching
from ..programs.site import origin
from ..storage import placement
from ..storage.arrays import in_host_memory
from ..storage.buffer import Buffer, Spec, buffer_of, wrap_sized
from ..storage.checks import check_index, check_layout
from ..storage.dtypes import to_numpy, to_torch
from ..storage.layout import contiguous_strides, covers_buffer
from ..storage.transfer import as_numpy, put
from .call import Call
from .cpu_errors import check_dtypes
from .meta import call_meta
from .numbers import KindedNumber
from .results import Written
from .schema import Signature, short_name

Tensor = torch.Tensor

# The value of each operator's results, or the name of the argument that gives it.
_VALUES: dict[str, int | str] = {
    "zeros.default": 0,
    "ones.default": 1,
    "full.default": "fill_value",
    "zeros_like.default": 0,
    "ones_like.default": 1,
    "full_like.default": "fill_value",
    "new_zeros.default": 0,
    "new_ones.default": 1,
    "new_full.default": "fill_value",
    "zero_.default": 0,
    "fill_.Scalar": "value",
}

# A small transfer costs 1, and each MiB costs 1 more.
_BUDGET = 256
_UNIT = 1 << 20  # bytes


def host_bytes(shape: Sequence[int], itemsize: int) -> int:
    """The bytes that an array takes on the host. NumPy refuses large dimensions even if another one has size 0."""
    return math.prod(max(n, 1) for n in shape) * itemsize


class Budget:
    """The cost of the transfers with each key so far."""

    def __init__(self) -> None:
        self._spent: dict[object, int] = {}

    def is_left(self, key: object, nbytes: int = 0) -> bool:
        """Whether the next call with this key, of this size, should be a transfer."""
        return self._spent.get(key, 0) + nbytes // _UNIT < _BUDGET

    def spend(self, key: object, nbytes: int) -> None:
        """Note a transfer."""
        self._spent[key] = self._spent.get(key, 0) + 1 + nbytes // _UNIT

    def use_up(self, key: object) -> None:
        """Make no more transfers for this key."""
        self._spent[key] = _BUDGET


class Filling:
    """The calls of one operator that are transfers."""

    def __init__(self, op: OpOverload, signature: Signature, value: int | str):
        self.op, self.signature = op, signature
        self.budget = Budget()
        self._value: int | None = None if isinstance(value, str) else value
        self._index = signature.names.index(value) if isinstance(value, str) else -1
        self._origin = Written(short_name(op))
        self._known: dict[object, tuple[tuple[int, ...], torch.dtype]] = {}  # by key: size, dtype

    def run(self, call: Call) -> Tensor | None:
        """The result of a call without a program; None if the call needs one, or is to be compiled.

        Raises:
            Whatever torch raises for these arguments.
        """
        key = tuple(call.key)
        if not self.budget.is_left(key):
            return None
        made = self._written(call, key) if self.signature.written else self._fresh(call, key)
        if made is None:
            self.budget.use_up(key)
            return None
        result, nbytes = made
        self.budget.spend(key, nbytes)
        return result

    def _fresh(self, call: Call, key: object) -> tuple[Tensor, int] | None:
        """A new tensor and its size in bytes."""
        where = call.buffers[0].spec.placement if call.buffers else placement.current()
        if key not in self._known:
            size_and_dtype = self._checked(call, where)
            if size_and_dtype is None:
                return None
            self._known[key] = size_and_dtype
        size, dtype = self._known[key]
        if not self.budget.is_left(key, host_bytes(size, dtype.itemsize)):
            return None
        array, spec = put(self._filled(call, size, dtype), where)
        result = wrap_sized(array, spec, size, dtype)
        self._note(buffer_of(result))
        return result, spec.nbytes

    def _checked(self, call: Call, where: Sharding) -> tuple[tuple[int, ...], torch.dtype] | None:
        """The size and the dtype of a new tensor; None if it needs a program. The key of a call determines them."""
        args = dict(zip(self.signature.names, self.signature.complete(call.args), strict=True))
        device = args["device"]
        if not isinstance(where, SingleDeviceSharding) or getattr(device, "type", "jax") != "jax":
            return None
        check_layout(args["layout"], args["pin_memory"])
        check_index(device)
        check_dtypes(self.op, self.signature, tuple(args.values()))
        meta = call_meta(self.op, self.signature, tuple(args.values()))
        if meta is None or meta.stride() != contiguous_strides(tuple(meta.shape)):
            return None
        return tuple(meta.shape), meta.dtype

    def _written(self, call: Call, key: object) -> tuple[Tensor, int] | None:
        """The tensor that the call fills, if it is all of its buffer, and its size in bytes."""
        (target,), (buffer,) = call.tensors, call.buffers
        spec = buffer.spec
        if not isinstance(spec.placement, SingleDeviceSharding) or not covers_buffer(target):
            return None
        if to_numpy(target.dtype) != spec.dtype or not self.budget.is_left(key, spec.nbytes):
            return None
        array, _ = put(self._filled(call, spec.shape, target.dtype), spec.placement)
        buffer.write(array, spec)
        self._note(buffer)
        return target, spec.nbytes

    def _filled(self, call: Call, shape: tuple[int, ...], dtype: torch.dtype) -> np.ndarray:
        return filled(self._value_of(call), shape, dtype)

    def _value_of(self, call: Call) -> Any:
        return call.args[self._index] if self._value is None else self._value

    def constant(self, call: Call, specs: Sequence[Spec]) -> Constant | None:
        """The result of a call's program as a value, where a transfer would make it; None if it is a computation.

        Args:
            specs: those of the program's results.
        """
        (spec,) = specs
        if self.signature.written:
            (target,) = call.tensors
            if not covers_buffer(target) or to_numpy(target.dtype) != spec.dtype:
                return None
        is_operand = bool(call.numbers)
        return Constant(spec, None if is_operand else self._value_of(call))

    def _note(self, buffer: Buffer) -> None:
        buffer.origin = origin(self._origin)
        if watching.watcher is not None:
            watching.watcher.add_result(buffer)


class Constant:
    """The result of a program that fills.

    Args:
        spec: of the result.
        value: of its elements; None if it is the number that the program takes.
    """

    def __init__(self, spec: Spec, value: Any):
        self.spec, self._value = spec, value
        self._budget = Budget()

    def array(self, numbers: Sequence[KindedNumber]) -> jax.Array | None:
        """The result by a transfer; None if transfers have cost as much as a compilation.

        Args:
            numbers: those that the program takes.
        """
        spec = self.spec
        nbytes = host_bytes(spec.shape, spec.dtype.itemsize)
        if not self._budget.is_left(None, nbytes):
            return None
        self._budget.spend(None, nbytes)
        return self.transferred(numbers)

    def transferred(self, numbers: Sequence[KindedNumber]) -> jax.Array:
        """The result by a transfer, whatever it costs."""
        value = numbers[0][1] if self._value is None else self._value
        values = filled(value, self.spec.shape, to_torch(self.spec.dtype))
        return put(values, self.spec.placement)[0]

    def element(self) -> np.ndarray | None:
        """The value of each element, without dimensions; None if it is the number that the program takes."""
        if self._value is None:
            return None
        return filled(self._value, (), to_torch(self.spec.dtype))


def filled(value: Any, shape: Sequence[int], dtype: torch.dtype) -> np.ndarray:
    """An array of one value, converted by torch."""
    if type(value) is int and not value:
        return in_host_memory(lambda: np.zeros(shape, to_numpy(dtype)))
    # torch checks the range of the value only for more than one element.
    count = 2 if math.prod(shape) > 1 else 1
    few = as_numpy(torch.full((count,), value, dtype=dtype, device="cpu"))
    return in_host_memory(lambda: np.full(shape, few[0]))


def filling_of(op: OpOverload | None, signature: Signature) -> Filling | None:
    """The object that makes the results of an operator's first calls; None if the operator does not fill."""
    value = None if op is None else _VALUES.get(short_name(op))
    return None if op is None or value is None else Filling(op, signature, value)
