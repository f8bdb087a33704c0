"""Finds what keeps an array alive: the variables that lead to it, and the path from each variable to the array.

The garbage collector knows which objects refer to an object. The search walks back from the array, level by level,
until it reaches a name in a namespace, in a module, or in a function that is running or held by a traceback. The
collector does not see references from torch's C++. The search finds two kinds of them itself: the tensors that share a
storage, and a leaf's `.grad`. It ends at objects that only C++ holds, such as inputs saved for a backward pass; the
result then says that no Python name leads to the array.
"""

from __future__ import annotations

import gc
import inspect
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

import jax
import torch

from ..programs.rng import RandomKey
from ..programs.site import is_user_file
from ..storage.buffer import Buffer
from .instances import instances, with_subclasses

_LEVELS = 14
_WIDTH = 400  # objects examined per level
_TABLES = (
    "_parameters",
    "_buffers",
    "_modules",
)  # tables of a module; paths show their entries as attributes of the module
NO_NAME = (
    "no Python name leads to it: torch's autograd graph saves it for a backward pass, or a computation is still "
    "running. `del` the outputs that require a gradient (for a list of losses, keep loss.detach() instead)."
)


def retainers(
    array_id: int, namespace: Mapping[str, Any] | None = None, most: int = 5
) -> list[str]:
    """The reference paths that keep an array alive, the shortest first.

    Args:
        array_id: `LiveArray.id`.
        namespace: the notebook's namespace. Paths show its names without a module name.
        most: the maximum number of paths.

    Raises:
        LookupError: no live array has this id.

    Example:
        >>> import torch
        >>> from jaxtorch.insight.retainers import retainers
        >>> from jaxtorch.insight.memory import live_arrays
        >>> history = {"losses": [[torch.zeros(59, 31, device="jax")]]}
        >>> (found,) = [a for a in live_arrays() if a.shape == (59, 31)]
        >>> retainers(found.id, {"history": history})[0]
        "history['losses'][0][0]"
    """
    array = next((a for a in jax.live_arrays() if id(a) == array_id), None)
    if array is None:
        raise LookupError("no such array is alive any more")
    search = _Search(namespace or {}, most)
    search.run(array)
    return sorted(search.results, key=lambda path: ("(" in path, len(path))) or [NO_NAME]


class _Search:
    """A search back from an array. It skips its own references to the objects that it visits (`ignored`)."""

    def __init__(self, namespace: Mapping[str, Any], most: int):
        self.most = most
        self.results: list[str] = []
        self.ignored = {id(self), id(self.__dict__), id(namespace)}
        self.paths: dict[int, str] = {}  # visited object -> the path from it to the array
        modules = [(name, m) for name, m in list(sys.modules.items()) if m is not None]
        self.roots = {id(vars(m)): name for name, m in modules if hasattr(m, "__dict__")}
        self.roots[id(namespace)] = ""
        self.namespace = namespace
        self.locals = _local_variables()

    def run(self, array: Any) -> None:
        level: list[Any] = [array]
        self.paths[id(array)] = ""
        for tensor, path in _tensors_over(array):
            self.paths[id(tensor)] = path
            level.append(tensor)
        self._search_namespace(level)
        for _ in range(_LEVELS):
            for value in level:
                if id(value) in self.locals:
                    variable, where = self.locals[id(value)]
                    self._add_result(f"{variable}{self.paths[id(value)]}, {where}")
            if not level or len(self.results) >= self.most:
                return
            level = self._referrers(level)

    def _search_namespace(self, level: list[Any]) -> None:
        """Search the namespace for these objects. The collector may miss it, because it may not track dictionaries."""
        for name, value in list(self.namespace.items()):
            if any(value is target for target in level) and not name.startswith("_"):
                self._add_result(name + self.paths[id(value)])

    def _referrers(self, level: list[Any]) -> list[Any]:
        """The objects that refer to the objects of this level."""
        self.ignored |= {id(level), id(self.paths), id(self.results)}
        targets = {id(value): value for value in level}
        self.ignored.add(id(targets))
        following: list[Any] = []
        self.ignored.add(id(following))
        frame = sys._getframe()
        ours = {id(frame), id(frame.f_back)}
        for holder in gc.get_referrers(*level):
            is_visited = (
                id(holder) in self.ignored or id(holder) in ours or id(holder) in self.paths
            )
            if is_visited and id(holder) not in self.roots:
                continue
            for inner in gc.get_referents(holder):
                if id(inner) in targets and (path := self._step(holder, inner)) is not None:
                    self.paths[id(holder)] = path
                    following.append(holder)
                    break
        return following[:_WIDTH]

    def _step(self, holder: Any, inner: Any) -> str | None:
        """The path from this holder to the array. None ends the search here: at a name, or at an object to ignore."""
        suffix = self.paths[id(inner)]
        root = self.roots.get(id(holder))
        if isinstance(holder, dict) or root is not None:
            key = next((k for k, v in holder.items() if v is inner), inner)
            if key is inner and root is None:
                return f" (as a key){suffix}"
            if root is not None:
                if key == "get_ipython":  # holds the namespace, which gives a better path
                    return None
                if root or not self._has_result(f"{key}{suffix}"):
                    self._add_result(
                        f"{root}.{key}{suffix}" if root else _interactive(f"{key}{suffix}")
                    )
                return None
            return f"[{_key(key)}]{suffix}"
        if isinstance(holder, list | tuple):
            index = next((i for i, v in enumerate(holder) if v is inner), None)
            return f"[{index}]{suffix}"
        if isinstance(holder, types.FrameType):
            name = next((n for n, v in _variables(holder) if v is inner), "?")
            code = holder.f_code
            if code.co_filename != __file__:
                self._add_result(
                    f"{name}{suffix}, a local variable of {code.co_name}() ({code.co_filename})"
                )
            return None
        if isinstance(holder, RandomKey):
            self._add_result("the device's random number generator: it is its key")
            return None
        if isinstance(holder, Buffer | types.ModuleType):
            return None
        if isinstance(holder, types.CellType):
            return suffix
        if isinstance(holder, types.FunctionType):
            suffix = re.sub(r"^\[\d+\]", "", suffix)  # the index of the closure cell
            return f" (in the closure of {holder.__qualname__}){suffix}"
        if isinstance(holder, torch.Tensor) and type(inner).__name__.endswith("Backward"):
            return f".grad_fn{suffix}"
        path = _attribute(holder, inner, suffix)
        # IPython's shell holds the same objects as the namespace, which gives a better path.
        return None if path.startswith((".user_ns", ".user_global_ns", ".user_module")) else path

    def _has_result(self, path: str) -> bool:
        return path in self.results

    def _add_result(self, path: str) -> None:
        if path not in self.results and len(self.results) < self.most:
            self.results.append(path)


def _local_variables() -> dict[int, tuple[str, str]]:
    """`id` of a value -> (name, where) for the local variables of running functions. The collector misses them."""
    values: dict[int, tuple[str, str]] = {}
    for running in sys._current_frames().values():
        frame: types.FrameType | None = running
        while frame is not None:
            code = frame.f_code
            if code.co_flags & inspect.CO_OPTIMIZED and is_user_file(code.co_filename):
                where = (
                    f"a local variable of {code.co_name}() ({code.co_filename}), which is running"
                )
                for name, value in _variables(frame):
                    values.setdefault(id(value), (name, where))
            frame = frame.f_back
    return values


def _variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The local variables of a frame. Reading them must not keep them alive."""
    table = frame.f_locals
    variables = list(table.items())
    # Before 3.13, this dictionary is a copy that the frame caches. It would keep the values alive. Clear it if only the
    # frame, this function and `getrefcount` refer to it.
    if sys.version_info < (3, 13) and sys.getrefcount(table) <= 3:
        table.clear()
    return variables


def _tensors_over(array: Any) -> list[tuple[Any, str]]:
    """The tensors that have this array as data or gradient, each with the path from the tensor to the array."""
    tensors = [t for t in instances(with_subclasses(torch.Tensor)) if t.device.type == "jax"]
    paths = []
    for tensor in tensors:
        buffer = getattr(tensor.untyped_storage(), "buffer", None)
        if buffer is not None and buffer.array is array:
            paths.append((tensor, ""))
        grad = tensor.grad if tensor.is_leaf else None
        buffer = None if grad is None else getattr(grad.untyped_storage(), "buffer", None)
        if buffer is not None and buffer.array is array:
            paths.append((tensor, ".grad"))
    return paths


def _attribute(holder: Any, inner: Any, suffix: str) -> str:
    """The path through an attribute of an object, or through a slot."""
    table = getattr(holder, "__dict__", None)
    if inner is table and suffix.startswith("['"):
        name, _, after = suffix[2:].partition("']")
        if isinstance(holder, torch.nn.Module) and name in _TABLES and after.startswith("['"):
            name, _, after = after[2:].partition("']")
        return f".{name}{after}"
    for name, value in (table or {}).items():
        if value is inner:  # the collector may report the object, not its `__dict__`, as the holder
            if isinstance(holder, torch.nn.Module) and name in _TABLES and suffix.startswith("['"):
                name, _, suffix = suffix[2:].partition("']")
            return f".{name}{suffix}"
    return f" (in a {type(holder).__name__}){suffix}"


def _interactive(path: str) -> str:
    """The path as users write it if the name is part of IPython's output history: `_5` is `Out[5]`."""
    name = path.split("[")[0].split(".")[0]
    if name.startswith("_") and name[1:].isdigit():
        return (
            f"Out[{name[1:]}]{path[len(name) :]}, which IPython keeps (`%reset -f out` clears it)"
        )
    if name == "_oh":
        return f"Out{path[3:]}, which IPython keeps (`%reset -f out` clears it)"
    if name in ("_", "__", "___"):
        return f"{path}, which IPython keeps for displayed values (`%reset -f out` clears it)"
    return path


def _key(key: Any) -> str:
    if isinstance(key, str | int | float | bool | type(None)):
        return repr(key)
    return f"a {type(key).__name__}"
