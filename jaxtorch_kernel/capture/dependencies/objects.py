"""Which objects existed before the code ran, and which ones the code creates: these are no dependencies.

Nothing in Python tells how old an object is. So both kinds are noted where they are seen: what is reached from outside
existed before, and the code creates what its constructors return, and what it puts into a slot without having found it.
"""

from __future__ import annotations

import types
import weakref

import torch

from ...programs import tracing
from ...programs.trees import is_device_tensor
from ...storage.buffer import buffer_of
from .effects import Effects
from .tokens import is_plain
from .trees import tensor_tree

Tensor = torch.Tensor

# Values that are noted in their own way, wherever they are.
_NOT_DATA = Tensor, torch.nn.Module, torch.optim.Optimizer, type, types.ModuleType


class Objects:
    """The objects of one trace.

    Args:
        effects: records the contents of objects before the code changes them.
        namespace: of a cell, which tracks its own names.
    """

    def __init__(self, effects: Effects, namespace: dict[str, object] | None):
        self._effects = effects
        self._namespace = namespace
        # With the path by which each was first reached.
        self._preexisting: dict[int, tuple[object, str]] = {}
        # What the code creates may hold tensors of the trace. So it is held only while the code runs, if its type does
        # not support weak references, and otherwise not at all.
        self._created: dict[int, weakref.ref[object]] = {}
        self._held: dict[int, object] = {}

    # -- those that existed before --------------------------------------------------------------------------------

    def add_preexisting(self, value: object, path: str) -> None:
        """Note an object that existed before the code ran."""
        if self.is_created(value):
            return
        if id(value) not in self._preexisting or not self._preexisting[id(value)][1]:
            self._preexisting[id(value)] = value, path
            self.take_snapshot(value, path)
            if isinstance(value, torch.nn.Module) and path:
                for name, child in vars(value).get("_modules", {}).items():
                    self.add_preexisting(child, f"{path}.{name}")

    def is_preexisting(self, value: object) -> bool:
        """Whether an object existed before the code ran."""
        return id(value) in self._preexisting

    def take_snapshot(self, value: object, path: str) -> None:
        """Record the contents of an object before the code changes them."""
        if self._namespace is None or getattr(value, "__dict__", None) is not self._namespace:
            self._effects.snapshots.take(value, path, self.is_created)

    def path_of(self, value: object, otherwise: str) -> str:
        """The path by which an object was first reached."""
        return (self._preexisting.get(id(value)) or (None, ""))[1] or otherwise

    def module_path(self, module: torch.nn.Module) -> str:
        """The path of a module, or the name of its class."""
        return self.path_of(module, type(module).__name__)

    # -- those that the code creates ------------------------------------------------------------------------------

    def add_created(self, value: object) -> None:
        """Note an object that the code creates."""
        try:
            self._created[id(value)] = weakref.ref(value)
        except TypeError:  # its type does not support weak references
            self._held[id(value)] = value

    def is_created(self, value: object) -> bool:
        """Whether the code created an object, which is then not a dependency."""
        if isinstance(value, types.MethodType):
            return self.is_created(value.__self__)
        if id(value) in self._held:
            return True
        reference = self._created.get(id(value))
        is_uninitialized = isinstance(value, torch.nn.Module) and "_modules" not in vars(value)
        if is_uninitialized or (reference is not None and reference() is value):
            return True
        return isinstance(value, tuple) and any(map(_is_traced, value))  # tuples do not change

    def is_new(self, value: object, previous: object) -> bool:
        """Whether the code created what it put in a slot in place of `previous`; it is not a dependency."""
        if previous is value:
            return False
        if not (isinstance(value, _NOT_DATA) or is_plain(value) or self.is_preexisting(value)):
            self.add_created(value)
            return True
        tree = tensor_tree(value)
        return tree is not None and any(map(_is_traced, tree[0]))

    # -- the end --------------------------------------------------------------------------------------------------

    def release(self) -> list[tuple[object, str]]:
        """Release all objects, after the code has run; returns those that existed before, with their paths."""
        preexisting = list(self._preexisting.values())
        self._preexisting.clear()
        self._held.clear()
        return preexisting


def _is_traced(value: object) -> bool:
    """Whether a value is a tensor that a trace created."""
    trace = tracing.current()
    return trace is not None and is_device_tensor(value) and trace.created(buffer_of(value))
