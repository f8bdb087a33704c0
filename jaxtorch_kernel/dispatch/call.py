"""A call, taken apart into its key and the run-time inputs of its program.

The key holds everything that the program depends on. A tensor enters it as its geometry, a number only as its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..base import ambient
from ..programs.errors import mixed_devices
from ..storage.buffer import Buffer, buffer_of, geometry
from .numbers import KindedNumber, equals_only_itself
from .schema import FLAG, NUMBER, NUMBERS, STATIC, TENSOR, TENSORS, Arguments

Tensor = torch.Tensor

# The kind of a Python number. A bool has none: it is a static argument.
number_kind = {int: "i", float: "f", complex: "c"}.get


_PLAIN = (Tensor, torch.nn.Parameter)


class Call:
    """The arguments of one call of an operator.

    Attributes:
        args: the arguments as torch passed them.
        key: everything that the program depends on; starts with the global state (`base/ambient.py`).
        tensors: the tensors among the arguments.
        buffers: the buffer of each tensor.
        numbers: the numbers among the arguments, each after its kind.
    """

    __slots__ = ("args", "buffers", "key", "numbers", "tensors")

    def __init__(
        self,
        args: Arguments,
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: list[KindedNumber],
    ):
        self.args, self.key = args, key
        self.tensors, self.buffers, self.numbers = tensors, buffers, numbers

    def add(self, kind: int, argument: Any, operator: str, copy_cpu: bool) -> None:
        """Add one argument to the key and to the inputs.

        Args:
            kind: as in `schema.py`.
            argument: the argument, or an item of a list argument.
            operator: its name, for error messages.
            copy_cpu: whether to copy CPU tensors with dimensions to the device (indices, as on cuda).
        """
        key = self.key
        if argument is None:
            key.append(None)
        elif kind == TENSORS:
            self._add_tensors(argument, operator, copy_cpu)
        elif kind == TENSOR and isinstance(argument, Tensor):
            self._add_tensor(argument, operator, copy_cpu)
        elif kind <= NUMBER:
            # torch passes a Python number unchanged where the schema says Tensor.
            letter = number_kind(type(argument))
            if letter is None:
                key.append(exact(argument))
            else:
                key.append(letter)
                self.numbers.append((letter, argument))
        elif kind == NUMBERS:
            key.append(len(argument))
            for item in argument:
                self.add(NUMBER, item, operator, copy_cpu)
        elif kind == FLAG:
            key.append("i")
            self.numbers.append(("i", int(argument)))
        elif kind == STATIC:
            key.append(exact(argument))

    def _add_tensors(self, items: Sequence[Any], operator: str, copy_cpu: bool) -> None:
        key, tensors, buffers = self.key, self.tensors, self.buffers
        key.append(len(items))
        for item in items:
            # Tensors of the device are handled inline, as in `describe`: optimizers pass hundreds.
            buffer = (
                getattr(item.untyped_storage(), "buffer", None) if type(item) in _PLAIN else None
            )
            if buffer is None:
                self.add(TENSOR, item, operator, copy_cpu)
            else:
                tensors.append(item)
                buffers.append(buffer)
                key.append(geometry(item, buffer))

    def _add_tensor(self, tensor: Tensor, operator: str, copy_cpu: bool) -> None:
        device = tensor.device.type
        if device == "cpu" and tensor.dim() == 0:
            self.key += ("0-dim", tensor.dtype)
            self.numbers.append((kind_of_tensor(tensor), tensor.item()))
            return
        if device == "cpu" and copy_cpu:
            tensor = tensor.to("jax")
        elif device != "jax":
            raise mixed_devices(operator, tensor.device)
        buffer = buffer_of(tensor)
        self.tensors.append(tensor)
        self.buffers.append(buffer)
        self.key.append(geometry(tensor, buffer))


def new_call(args: Arguments) -> Call:
    """A call whose arguments are still to be added."""
    return Call(args, ambient.eager(), [], [], [])


def describe(args: Arguments, kinds: Iterable[int], operator: str, copy_cpu: bool) -> Call:
    """Take a call apart."""
    call = new_call(args)
    key, tensors, buffers, numbers = call.key, call.tensors, call.buffers, call.numbers
    for kind, a in zip(kinds, args, strict=False):
        # Plain tensors and numbers are handled inline, which saves a method call for each.
        letter = number_kind(type(a))
        if letter is not None and kind <= NUMBER:
            key.append(letter)
            numbers.append((letter, a))
            continue
        if kind == TENSOR and isinstance(a, Tensor):
            buffer = getattr(a.untyped_storage(), "buffer", None)
            if buffer is not None:
                tensors.append(a)
                buffers.append(buffer)
                key.append(geometry(a, buffer))
                continue
        call.add(kind, a, operator, copy_cpu)
    return call


def kind_of_tensor(a: Tensor) -> str:
    """The number kind of a 0-dim CPU tensor."""
    return "c" if a.is_complex() else "f" if a.is_floating_point() else "i"


def kind_by_value(a: object) -> int:
    """The kind of an argument of a JAX function, which has no schema."""
    if isinstance(a, Tensor):
        return TENSOR
    if isinstance(a, list) and a and isinstance(a[0], Tensor):
        return TENSORS
    return NUMBER if type(a) is float else STATIC


def exact(a: object) -> object:
    """A static argument for a key: 1, 1.0 and True compare equal but need different programs; so do 0.0 and -0.0."""
    if isinstance(a, list | tuple):
        return tuple([exact(item) for item in a])
    if isinstance(a, int):
        return type(a), a
    if isinstance(a, float | complex):
        return type(a), a if equals_only_itself(a) else repr(a)
    return a


def first_positions(buffers: Sequence[Buffer]) -> list[int]:
    """For each buffer, the index of its first occurrence: equal ones share memory."""
    first: dict[int, int] = {}
    return [first.setdefault(id(b), i) for i, b in enumerate(buffers)]
