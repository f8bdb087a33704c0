"""What keeps an array alive: the names of variables, and the way from each to the array.

Python's collector tells who refers to an object, and this goes back from the array, level by level, until it meets
a name: of a namespace, of a module, of a function that runs or is stopped in a traceback. Where a tensor is held by
torch's C++, the collector sees nothing, and what is known of torch helps: the tensors over a storage, a leaf's `.grad`.
What only C++ holds, such as the inputs that a graph saves for its backward pass, ends there, and that is said.
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

from ..programs.rng import Source
from ..programs.site import is_user_file
from ..storage.buffer import Buffer

_LEVELS = 14
_WIDTH = 400  # objects looked at in one level
_TABLES = ("_parameters", "_buffers", "_modules")  # of a module: its attributes, to a reader
NOBODY = (
    "no Python name leads to it: a graph of torch's autograd keeps it for a backward pass, or a computation still "
    "runs. `del` the outputs that require a gradient (a loss, a list of losses: keep loss.detach() instead)."
)


def retainers(
    array_id: int, namespace: Mapping[str, Any] | None = None, most: int = 5
) -> list[str]:
    """The ways by which an array is kept alive, the shortest first.

    Args:
        array_id: `LiveArray.id`.
        namespace: of a notebook, whose names are written without a module's.
        most: how many.

    Raises:
        LookupError: no such array lives.

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
        raise LookupError("no such array lives any more")
    search = _Search(namespace or {}, most)
    search.run(array)
    return sorted(search.found, key=lambda path: ("(" in path, len(path))) or [NOBODY]


class _Search:
    """A search back from an array. Nothing of its own may look like a keeper."""

    def __init__(self, namespace: Mapping[str, Any], most: int):
        self.most = most
        self.found: list[str] = []
        self.own = {id(self), id(self.__dict__), id(namespace)}
        self.paths: dict[
            int, str
        ] = {}  # of what was met: how it is written from there to the array
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
        self._names(level)
        for _ in range(_LEVELS):
            for each in level:
                if id(each) in self.locals:
                    variable, where = self.locals[id(each)]
                    self._say(f"{variable}{self.paths[id(each)]}, {where}")
            if not level or len(self.found) >= self.most:
                return
            level = self._back(level)

    def _names(self, level: list[Any]) -> None:
        """A namespace may be no dictionary that the collector follows: look there first."""
        for name, value in list(self.namespace.items()):
            if any(value is each for each in level) and not name.startswith("_"):
                self._say(name + self.paths[id(value)])

    def _back(self, level: list[Any]) -> list[Any]:
        """Who refers to what is in this level."""
        self.own |= {id(level), id(self.paths), id(self.found)}
        met = {id(each): each for each in level}
        self.own.add(id(met))
        following: list[Any] = []
        self.own.add(id(following))
        frame = sys._getframe()
        ours = {id(frame), id(frame.f_back)}
        for holder in gc.get_referrers(*level):
            known = id(holder) in self.own or id(holder) in ours or id(holder) in self.paths
            if known and id(holder) not in self.roots:
                continue
            for inner in gc.get_referents(holder):
                if id(inner) in met and (path := self._step(holder, inner)) is not None:
                    self.paths[id(holder)] = path
                    following.append(holder)
                    break
        return following[:_WIDTH]

    def _step(self, holder: Any, inner: Any) -> str | None:
        """How the array is written from this holder on; None where the way ends here, at a name or at nothing."""
        rest = self.paths[id(inner)]
        root = self.roots.get(id(holder))
        if isinstance(holder, dict) or root is not None:
            key = next((k for k, v in holder.items() if v is inner), inner)
            if key is inner and root is None:
                return f" (a key there){rest}"
            if root is not None:
                if key == "get_ipython":  # holds the namespace, which tells more
                    return None
                if root or not self._known(f"{key}{rest}"):
                    self._say(f"{root}.{key}{rest}" if root else _interactive(f"{key}{rest}"))
                return None
            return f"[{_key(key)}]{rest}"
        if isinstance(holder, list | tuple):
            place = next((i for i, v in enumerate(holder) if v is inner), None)
            return f"[{place}]{rest}"
        if isinstance(holder, types.FrameType):
            name = next((n for n, v in _variables(holder) if v is inner), "?")
            code = holder.f_code
            if code.co_filename != __file__:
                self._say(
                    f"{name}{rest}, a local variable of {code.co_name}() ({code.co_filename})"
                )
            return None
        if isinstance(holder, Source):
            self._say("the device's random numbers: it is their key")
            return None
        if isinstance(holder, Buffer | types.ModuleType):
            return None
        if isinstance(holder, types.CellType):
            return rest
        if isinstance(holder, types.FunctionType):
            rest = re.sub(r"^\[\d+\]", "", rest)  # which cell of it
            return f" (in the closure of {holder.__qualname__}){rest}"
        if isinstance(holder, torch.Tensor) and type(inner).__name__.endswith("Backward"):
            return f".grad_fn{rest}"
        path = _attribute(holder, inner, rest)
        # IPython's shell holds all that the namespace holds; the namespace itself tells more.
        return None if path.startswith((".user_ns", ".user_global_ns", ".user_module")) else path

    def _known(self, path: str) -> bool:
        return path in self.found

    def _say(self, path: str) -> None:
        if path not in self.found and len(self.found) < self.most:
            self.found.append(path)


def _local_variables() -> dict[int, tuple[str, str]]:
    """`id` of a value -> (name, where) of the local variables of what runs: the collector does not see those."""
    found: dict[int, tuple[str, str]] = {}
    for running in sys._current_frames().values():
        frame: types.FrameType | None = running
        while frame is not None:
            code = frame.f_code
            if code.co_flags & inspect.CO_OPTIMIZED and is_user_file(code.co_filename):
                where = f"a local variable of {code.co_name}() ({code.co_filename}, which runs)"
                for name, value in _variables(frame):
                    found.setdefault(id(value), (name, where))
            frame = frame.f_back
    return found


def _variables(frame: types.FrameType) -> list[tuple[str, Any]]:
    """The local variables of a frame, which must not be kept alive by this look at them."""
    table = frame.f_locals
    variables = list(table.items())
    # Before 3.13 it is a copy that the frame keeps. Where only the frame has it (and we, twice), it may be emptied.
    if sys.version_info < (3, 13) and sys.getrefcount(table) <= 3:
        table.clear()
    return variables


def _tensors_over(array: Any) -> list[tuple[Any, str]]:
    """The tensors whose data this is, with what leads from each to it, and the leaves that it is the gradient of."""
    kinds: dict[type, bool] = {}
    tensors = []
    for each in gc.get_objects():
        kind = type(each)
        if kind not in kinds:
            kinds[kind] = issubclass(kind, torch.Tensor)
        if kinds[kind] and each.device.type == "jax":
            tensors.append(each)
    found = []
    for tensor in tensors:
        buffer = getattr(tensor.untyped_storage(), "buffer", None)
        if buffer is not None and buffer.array is array:
            found.append((tensor, ""))
        grad = tensor.grad if tensor.is_leaf else None
        buffer = None if grad is None else getattr(grad.untyped_storage(), "buffer", None)
        if buffer is not None and buffer.array is array:
            found.append((tensor, ".grad"))
    return found


def _attribute(holder: Any, inner: Any, rest: str) -> str:
    """An object's own table of attributes, or a slot."""
    table = getattr(holder, "__dict__", None)
    if inner is table and rest.startswith("['"):
        name, _, after = rest[2:].partition("']")
        if isinstance(holder, torch.nn.Module) and name in _TABLES and after.startswith("['"):
            name, _, after = after[2:].partition("']")
        return f".{name}{after}"
    for name, value in (table or {}).items():
        if value is inner:  # Python keeps the attributes of some objects without a table
            if isinstance(holder, torch.nn.Module) and name in _TABLES and rest.startswith("['"):
                name, _, rest = rest[2:].partition("']")
            return f".{name}{rest}"
    return f" (in a {type(holder).__name__}){rest}"


def _interactive(path: str) -> str:
    """What IPython keeps of shown values, as a person knows it: `_5` is `Out[5]`."""
    name = path.split("[")[0].split(".")[0]
    if name.startswith("_") and name[1:].isdigit():
        return (
            f"Out[{name[1:]}]{path[len(name) :]}, which IPython keeps (`%reset -f out` forgets it)"
        )
    if name == "_oh":
        return f"Out{path[3:]}, which IPython keeps (`%reset -f out` forgets it)"
    if name in ("_", "__", "___"):
        return f"{path}, which IPython keeps of shown values (`%reset -f out` forgets it)"
    return path


def _key(key: Any) -> str:
    if isinstance(key, str | int | float | bool | type(None)):
        return repr(key)
    return f"a {type(key).__name__}"
