"""Decomposing a call into its key, its operands, and a template that rebuilds the arguments.

The key holds everything that a program depends on; the operands are its run-time inputs. A tensor enters the key by its
geometry, a number only by its kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..programs.errors import mixed_devices
from ..storage.buffer import Buffer, buffer_of, geometry
from ..storage.dtypes import to_numpy
from .schema import NUMBER, NUMBERS, STATIC, TENSOR, TENSORS

Tensor = torch.Tensor

# Python's own numbers are operands; bool is a static argument.
letter_of = {int: "i", float: "f", complex: "c"}.get


class Call:
    """A call taken apart: its key, and what the program is run with."""

    __slots__ = ("args", "buffers", "key", "numbers", "tensors")

    def __init__(
        self,
        args: tuple[Any, ...],
        key: list[Any],
        tensors: list[Tensor],
        buffers: list[Buffer],
        numbers: list[tuple[str, Any]],
    ):
        self.args, self.key = args, key
        self.tensors, self.buffers, self.numbers = tensors, buffers, numbers


def describe(
    operation: Any,
    kind: int,
    a: Any,
    key: list[Any],
    tensors: list[Tensor],
    buffers: list[Buffer],
    numbers: list[tuple[str, Any]],
) -> None:
    """Add one argument to the key and to the operands.

    An operation that says `copy_cpu` takes CPU tensors with dimensions too, by copying them (indices, as on cuda).
    """
    if a is None:
        key.append(None)
    elif kind == TENSOR and isinstance(a, Tensor):
        device = a.device.type
        if device == "cpu" and a.dim() == 0:
            key += ("0-dim", a.dtype)
            numbers.append((kind_of_tensor(a), a.item()))
            return
        if device == "cpu" and operation.copy_cpu:
            a = a.to("jax")
        elif device != "jax":
            raise mixed_devices(operation.name, a.device)
        buffer = buffer_of(a)
        tensors.append(a)
        buffers.append(buffer)
        key.append(geometry(a, buffer))
    elif kind <= NUMBER:
        # torch hands a Python number in a tensor's place over as what it is.
        letter = letter_of(type(a))
        if letter is None:
            key.append(exact(a))
        else:
            key.append(letter)
            numbers.append((letter, a))
    elif kind in (TENSORS, NUMBERS):
        key.append(len(a))
        inner = TENSOR if kind == TENSORS else NUMBER
        for item in a:
            describe(operation, inner, item, key, tensors, buffers, numbers)
    elif kind == STATIC:
        # 1 == 1.0 == True, and they are different programs.
        key.append(tuple(map(exact, a)) if isinstance(a, list | tuple) else exact(a))


class Slot:
    """In a call's template: the tensor with this index."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


class NumberSlot:
    """In a call's template: the number with this index among those of its kind."""

    __slots__ = ("dtype", "index", "kind", "position", "scalar")

    def __init__(self, kind: str, index: int, position: int, dtype: np.dtype | None, scalar: bool):
        self.kind, self.index, self.dtype = kind, index, dtype
        self.position = position  # among all numbers of the call
        self.scalar = scalar  # a Scalar argument must fit what it is cast to; an operand wraps


def kind_of_tensor(a: Tensor) -> str:
    """The number kind of a 0-dim CPU tensor."""
    return "c" if a.is_complex() else "f" if a.is_floating_point() else "i"


def exact(a: Any) -> Any:
    """A static argument for a key: 1, 1.0 and True are equal, and different programs."""
    return (type(a), a) if isinstance(a, bool | int | float | complex) else a


def kind_by_value(a: Any) -> int:
    """The argument kind of a JAX function, which has no schema."""
    if isinstance(a, Tensor):
        return TENSOR
    if isinstance(a, list) and a and isinstance(a[0], Tensor):
        return TENSORS
    return NUMBER if type(a) is float else STATIC


class Positions:
    """Counts slots while a template is made, in the order in which `describe` met them."""

    def __init__(self) -> None:
        self.tensor = 0
        self.numbers = {"f": 0, "i": 0, "c": 0}

    def next_number(self, letter: str, dtype: np.dtype | None, scalar: bool) -> NumberSlot:
        """The slot of the next number of this kind."""
        slot = NumberSlot(letter, self.numbers[letter], sum(self.numbers.values()), dtype, scalar)
        self.numbers[letter] += 1
        return slot


def template_of(kind: int, a: Any, position: Positions) -> Any:
    """One argument as the program sees it: slots for tensors and numbers, the rest as it is."""
    if a is None:
        return None
    if kind == TENSOR and isinstance(a, Tensor):
        if a.device.type == "cpu" and a.dim() == 0:
            return position.next_number(kind_of_tensor(a), to_numpy(a.dtype), False)
        position.tensor += 1
        return Slot(position.tensor - 1)
    if kind <= NUMBER:
        letter = letter_of(type(a))
        return position.next_number(letter, None, kind == NUMBER) if letter else a
    if kind in (TENSORS, NUMBERS):
        inner = TENSOR if kind == TENSORS else NUMBER
        return [template_of(inner, item, position) for item in a]
    return a


def first_positions(buffers: list[Buffer]) -> list[int]:
    """For each buffer, where it occurs first: which operands share memory."""
    first: dict[int, int] = {}
    return [first.setdefault(id(b), i) for i, b in enumerate(buffers)]
