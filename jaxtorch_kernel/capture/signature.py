"""The signature of a call: the key by which its captured program is found.

`Arguments` flattens a call's arguments and converts them to what the program takes: numbers that vary are left out,
CPU tensors are copied to the device, and a tensor that is part of a larger one is copied. `key_of` makes the key. A
tensor contributes its geometry, requires_grad and class; everything else contributes its type and value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from pathlib import PosixPath, PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import torch

from ..base.ambient import ambient
from ..base.torch_private import pytree
from ..programs.trees import is_device_tensor
from ..storage.buffer import buffer_of, geometry
from ..storage.layout import covers_buffer
from ..storage.transfer import to_device
from .dependencies.host_numbers import host_numbers
from .dependencies.tokens import is_plain, token
from .errors import CaptureError
from .named import NamedArguments
from .numbers import Numbers
from .results import Known

Tensor = torch.Tensor
_STDLIB_VALUES = (
    Decimal,
    Fraction,
    datetime,
    date,
    time,
    timedelta,
    PurePosixPath,
    PosixPath,
    UUID,
)


# The leaves that a program takes: a tensor of the device where it has an input, and elsewhere any value of the user's.
Leaves = Sequence[Any]


class Arguments:
    """The arguments of one call, flattened.

    Attributes:
        caller_leaves: the leaves that the caller passed.
        leaves: the leaves that the program takes.
        numbers: the indices of numbers that vary.
        borrowed: whether a tensor came from the CPU, so that results are returned there.
        copied: the indices of tensors that were copied because they are part of a larger tensor.
        parts: whether a tensor is taken as a part of a larger one, its offset included in the key.
        plain: whether all arguments are whole tensors of the device, so that `quick.py` may find the program.
    """

    __slots__ = (
        "borrowed",
        "caller_leaves",
        "copied",
        "leaves",
        "numbers",
        "parts",
        "plain",
        "structure",
    )

    def __init__(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        numbers: Numbers,
        static: NamedArguments,
        parts: Mapping[pytree.TreeSpec, set[int]],
    ):
        self.caller_leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.leaves: list[Any] = list(self.caller_leaves)
        self.numbers = numbers.substitute(self.structure, self.leaves, static.indices(self))
        self.borrowed = False
        self.copied: set[int] = set()
        self.parts = False
        for i, leaf in enumerate(self.leaves):
            if not isinstance(leaf, Tensor):
                continue
            if leaf.device.type == "cpu":
                self.leaves[i] = _borrowed(leaf)
                self.borrowed = True
            elif leaf.device.type == "jax" and _is_part(leaf):
                if i in parts.get(self.structure, ()):
                    self.parts = True
                    continue
                # Copied before the run, so that one program serves parts at any offset.
                self.leaves[i] = leaf.clone()
                self.copied.add(i)
        self.plain = (
            not self.borrowed
            and not self.copied
            and not self.parts
            and len(self.leaves) == len(args)
            and all(map(isinstance, args, repeat(Tensor)))
        )

    def traced_leaves(self, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> list[object]:
        """The leaves that the traced code gets; `tensor` replaces each tensor."""
        leaves: list[object] = []
        for i, leaf in enumerate(self.leaves):
            if i in self.numbers:
                varying = host_numbers()
                leaf = self.caller_leaves[i] if varying is None else varying.argument(i)
            elif isinstance(leaf, Tensor):
                leaf = tensor(leaf)
            leaves.append(leaf)
        return leaves

    def buffer_indices(self) -> dict[int, int]:
        """The index of the leaf for the buffer of each tensor, by the buffer's identity."""
        return {
            id(buffer_of(leaf)): i for i, leaf in enumerate(self.leaves) if is_device_tensor(leaf)
        }

    def check_written(self, indices: set[int]) -> None:
        """Refuse writes to arguments that are not on the device.

        Raises:
            CaptureError: if the code writes to one.
        """
        for i in indices:
            if self.caller_leaves[i].device.type != "jax":
                raise CaptureError(
                    "the captured code writes to an argument on the CPU, but it only has a copy",
                    "Move it to the device: `x = x.jax()`.",
                )

    def known(self, traced_leaves: list[object]) -> list[Known]:
        """The caller's tensors, which the code may return. `traced_leaves`: the leaves that the code got."""
        return [
            Known(tensor, i, i in self.copied or self.borrowed)
            for i, tensor in enumerate(traced_leaves)
            if is_device_tensor(tensor)
        ]


def _is_part(tensor: Tensor) -> bool:
    # A lazily conjugated or negated tensor has other values than its buffer.
    return not covers_buffer(tensor) or tensor.is_conj() or tensor.is_neg()


def _borrowed(tensor: Tensor) -> Tensor:
    """A CPU tensor on the device; gradients flow back to it."""
    return tensor.to("jax") if tensor.requires_grad else to_device(tensor)


def key_of(arguments: Arguments) -> tuple[Hashable, ...]:
    """The key of a call."""
    # A program for a copied argument differs: views of the copy are results, and the copy may not be written.
    pairs = zip(arguments.leaves, arguments.caller_leaves, strict=True)
    converted = tuple(i for i, (leaf, passed) in enumerate(pairs) if leaf is not passed)
    key: list[Hashable] = [ambient(), arguments.structure, converted, arguments.borrowed]
    buffers = []
    for leaf in arguments.leaves:
        if isinstance(leaf, Tensor):
            if leaf.device.type != "jax":
                key.append((id(leaf), leaf.device))
                continue
            buffer = buffer_of(leaf)
            buffers.append(id(buffer))
            key += geometry(leaf, buffer), leaf.requires_grad, type(leaf)
            if leaf.__dict__:  # attributes that the user set
                key.append(token(leaf.__dict__))
            if arguments.parts:
                key.append((leaf.storage_offset(), leaf.is_conj(), leaf.is_neg()))
        else:
            key.append(by_value(leaf))
    if len(set(buffers)) < len(buffers):  # which arguments share memory
        key.append(tuple(buffers.index(b) for b in buffers))
    return tuple(key)


def by_value(leaf: object) -> Hashable:
    """The key of a non-tensor argument: its type and value, or its identity if it has no value.

    Objects of user classes, except frozen dataclasses, count by identity: code may distinguish objects that are equal.
    """
    kind = type(leaf)
    # By its digits: 0.0 is not -0.0, nan is nan, range(0) is not range(5, 5), and a slice may hold tensors.
    if isinstance(leaf, float | complex | np.generic | slice | range) or kind in _STDLIB_VALUES:
        return kind, repr(leaf)
    if is_plain(leaf):
        if isinstance(leaf, tuple | frozenset):
            return kind, tuple(map(by_value, leaf))
        return kind, leaf
    from_library = kind.__module__.partition(".")[0] in ("torch", "jax", "jaxlib", "jaxtorch")
    if from_library and kind.__hash__ is not None and kind.__eq__ is not object.__eq__:
        return kind, leaf
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen and is_dataclass(leaf):
        return kind, tuple(by_value(getattr(leaf, f.name)) for f in fields(leaf))
    return ByIdentity(leaf)


class ByIdentity:
    """A value that is compared by identity (a module, a list), with a weak reference to it if the class allows one."""

    __slots__ = ("id", "reference")

    def __init__(self, value: object):
        self.id = id(value)
        try:
            self.reference: Callable[[], object] = weakref.ref(value)
        except TypeError:
            self.reference = lambda: value

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        # Identities are reused: only references to a living object count.
        return isinstance(other, ByIdentity) and other.reference() is self.reference() is not None

    def __repr__(self) -> str:
        return f"{type(self.reference()).__name__} (by identity)"
