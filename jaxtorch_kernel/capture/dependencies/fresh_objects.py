"""Objects that captured code creates and returns, such as the cache of a language model.

The code creates them once, in the trace. Each run returns its own copies, with the tensors of that run: the tensors
inside the objects are results of the program like those that the code returns directly. After the trace the objects
hold a placeholder for each tensor. `copy.deepcopy` finds the run's tensor for it in its memo. Objects that share a part
do so after it, too, and what existed before the code ran is shared with the copies.
"""

from __future__ import annotations

import copy
import gc
import types
from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import CaptureError
from ..numbers import NeedsNumber
from .host_number import HostNumber
from .tokens import is_plain

Tensor = torch.Tensor

_WHOLE: tuple[type, ...] = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.CodeType,
)
_WHOLE += (types.TracebackType, types.FrameType)  # of an exception that the code returns
# Shared with the copies. The copy of a hook's handle would not remove the hook.
SHARED = (torch.nn.Module, torch.optim.Optimizer, types.ModuleType, RemovableHandle)


class _Placeholder:
    """Stands for a tensor in an object between two runs."""


class FreshObjects:
    """The objects among the results of one trace that its code created.

    Args:
        objects: all of them.
        is_older: whether an object existed before the code ran.

    Attributes:
        tensors: those inside the objects, until `settle`.

    Raises:
        NeedsNumber: if one holds a number that varies.
    """

    def __init__(self, objects: Sequence[object], is_older: Callable[[object], bool]):
        self._objects = list(objects)
        self._index = {id(o): i for i, o in enumerate(objects)}
        self._leaves: dict[int, int] = {}  # index among the leaves of the result -> index here
        self._placeholders: list[_Placeholder] = []
        self.tensors: list[Tensor] = []
        self._shared: list[object] = []
        self._look_inside(is_older)

    def _look_inside(self, is_older: Callable[[object], bool]) -> None:
        seen: dict[int, object] = {}  # holds them, so that no other object gets their ids
        stack = self._objects[::-1]
        while stack:
            value = stack.pop()
            if id(value) in seen or is_plain(value):
                continue
            seen[id(value)] = value
            if type(value) is HostNumber:
                raise NeedsNumber()
            if isinstance(value, Tensor):
                self.tensors.append(value)
            elif id(value) in self._index:
                stack += gc.get_referents(value)[::-1]
            elif isinstance(value, SHARED) or is_older(value):
                self._shared.append(value)
            elif not isinstance(value, _WHOLE):
                stack += gc.get_referents(value)[::-1]

    def settle(self, leaves: list[object]) -> None:
        """Put placeholders for the tensors into the objects, and take these out of the leaves of the result.

        Raises:
            CaptureError: if an object cannot be copied.
        """
        self._leaves = {i: self._index[id(o)] for i, o in enumerate(leaves) if id(o) in self._index}
        for i in self._leaves:
            leaves[i] = None
        self._placeholders = [_Placeholder() for _ in self.tensors]
        memo: dict[int, object] = {
            id(t): p for t, p in zip(self.tensors, self._placeholders, strict=True)
        }
        self.tensors = []
        try:
            self._objects = copy.deepcopy(self._objects, memo | self._memo_of_shared())
        except Exception as error:
            kinds = ", ".join(dict.fromkeys(type(o).__name__ for o in self._objects))
            raise CaptureError(
                f"the captured code returns an object that cannot be copied ({kinds}: {error}), but each run returns "
                "its own",
                "Return its parts, in a tuple, a list or a dictionary.",
            ) from None
        self._index.clear()

    def fill(self, results: list[object], tensors: Sequence[object]) -> None:
        """Put copies with the tensors of a run into its results."""
        memo = {id(p): t for p, t in zip(self._placeholders, tensors, strict=True)}
        objects = copy.deepcopy(self._objects, memo | self._memo_of_shared())
        for leaf, index in self._leaves.items():
            results[leaf] = objects[index]

    def _memo_of_shared(self) -> dict[int, object]:
        return {id(value): value for value in self._shared}
