"""The signature of a call: the key of its captured program.

Tensors contribute geometry, requires_grad and class; everything else contributes type and value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from pathlib import PosixPath, PurePosixPath
from typing import Any
from uuid import UUID

import torch

from ..base.ambient import ambient
from ..base.torch_private import pytree
from ..storage.buffer import buffer_of, geometry
from ..storage.transfer import to_device
from .dependencies.tokens import is_plain, token
from .errors import CaptureError
from .named import Named
from .numbers import Number, Numbers, number
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


class Arguments:
    """The arguments of one call, flat."""

    __slots__ = ("borrowed", "copied", "leaves", "numbers", "own", "parts", "plain", "structure")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: Numbers,
        static: Named,
        parts: dict[Any, set[int]],
    ):
        self.own, self.structure = pytree.tree_flatten((args, kwargs))
        self.leaves = list(self.own)  # as the program takes them
        self.numbers = numbers.substitute(self.structure, self.leaves, static.places(self))
        self.borrowed = False  # some came from the CPU
        self.copied: set[int] = set()
        self.parts = False  # some are taken as parts of larger tensors
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
                # A part of a larger tensor is read here: its place in it is no part of the program.
                self.leaves[i] = leaf.clone()
                self.copied.add(i)
        # Whole tensors of the device and nothing else: `quick.py` may find the program.
        self.plain = (
            not self.borrowed
            and not self.copied
            and not self.parts
            and len(self.leaves) == len(args)
            and all(map(isinstance, args, repeat(Tensor)))
        )

    def given(self, tensor: Callable[[Tensor], Tensor] = lambda t: t) -> list[Any]:
        """The leaves as the traced code sees them; `tensor` makes a tensor's stand-in."""
        found = []
        for i, leaf in enumerate(self.leaves):
            if i in self.numbers:
                leaf = number(leaf)
            elif isinstance(leaf, Tensor):
                leaf = tensor(leaf)
            found.append(leaf)
        return found

    def check_written(self, places: set[int]) -> None:
        """Refuse writes to arguments that are not on the device.

        Raises:
            CaptureError: if the code writes to one.
        """
        for i in places:
            if self.own[i].device.type != "jax":
                raise CaptureError(
                    "the captured code writes to an argument on the CPU, but it only has a copy",
                    "Move it to the device: `x = x.jax()`.",
                )

    def known(self, given: list[Any]) -> list[Known]:
        """The caller's tensors, which the code may give back. `given`: the leaves as the code saw them."""
        return [
            Known(tensor, i, i in self.copied or self.borrowed)
            for i, tensor in enumerate(given)
            if type(tensor) is not Number
            and isinstance(tensor, Tensor)
            and tensor.device.type == "jax"
        ]


def _is_part(tensor: Tensor) -> bool:
    return (
        tensor.storage_offset() != 0
        or tensor.numel() != buffer_of(tensor).spec.numel
        or 0 in tensor.stride()  # expanded: as many elements as its buffer, but not the same
        or tensor.is_conj()  # of other values than its buffer's
        or tensor.is_neg()
    )


def _borrowed(tensor: Tensor) -> Tensor:
    """A CPU tensor on the device; gradients flow back to it."""
    return tensor.to("jax") if tensor.requires_grad else to_device(tensor)


def key_of(arguments: Arguments) -> tuple[Any, ...]:
    """The key of a call."""
    # A copy of an argument is no argument: the code gives back views of it, and may not write to it.
    own = zip(arguments.leaves, arguments.own, strict=True)
    taken = tuple(i for i, (leaf, given) in enumerate(own) if leaf is not given)
    key: list[Any] = [ambient(), arguments.structure, taken, arguments.borrowed]
    buffers = []
    for leaf in arguments.leaves:
        if isinstance(leaf, Tensor):
            if leaf.device.type != "jax":
                key.append((id(leaf), leaf.device))
                continue
            buffer = buffer_of(leaf)
            buffers.append(id(buffer))
            key += geometry(leaf, buffer), leaf.requires_grad, type(leaf)
            if leaf.__dict__:  # what the user hung on it
                key.append(token(leaf.__dict__))
            if arguments.parts:
                key.append((leaf.storage_offset(), leaf.is_conj(), leaf.is_neg()))
        else:
            key.append(by_value(leaf))
    if len(set(buffers)) < len(buffers):  # which arguments share memory
        key.append(tuple(buffers.index(b) for b in buffers))
    return tuple(key)


def by_value(leaf: Any) -> Any:
    """The key of a non-tensor argument: its type and value, or its identity if it has no value.

    Objects of user classes, except frozen dataclasses, count by identity: code may distinguish objects that are equal.
    """
    kind: Any = type(leaf)
    if isinstance(leaf, float | complex) or kind in _STDLIB_VALUES:
        return kind, repr(leaf)  # by its digits: 0.0 is not -0.0, and nan is nan
    if is_plain(leaf):
        return kind, (tuple(map(by_value, leaf)) if kind in (tuple, frozenset) else leaf)
    librarys = kind.__module__.partition(".")[0] in ("torch", "jax", "jaxlib", "jaxtorch")
    if librarys and kind.__hash__ is not None and kind.__eq__ is not object.__eq__:
        return kind, leaf
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return kind, tuple(by_value(getattr(leaf, f.name)) for f in fields(leaf))
    return ByIdentity(leaf)


class ByIdentity:
    """An argument without a value of its own (a module, a list), equal to itself alone. Held weakly where it can be."""

    __slots__ = ("id", "reference")

    def __init__(self, value: Any):
        self.id = id(value)
        try:
            self.reference: Any = weakref.ref(value)
        except TypeError:
            self.reference = lambda: value

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.reference() is self.reference() is not None

    def __repr__(self) -> str:
        return f"{type(self.reference()).__name__} (by identity)"
