"""The state of a training run in two parts that can be stored: named arrays, and an outline of where they belong.

The state is what `state_dict()` returns: nested containers of tensors, numbers and strings. In the outline, each tensor
is replaced by a `StoredTensor`, written as a plain dict: the name of its array, its dtype, size and device. So a
checkpoint can be compared with a model before any array is read, and each array is read directly to its device.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Protocol, TypeGuard, runtime_checkable

import jax
import numpy as np
import torch

from ..interop.values import to_jax
from ..storage import placement
from ..storage.dtypes import to_numpy
from ..storage.transfer import as_numpy, host_values

Tensor = torch.Tensor
Array = jax.Array | np.ndarray
Tree = object  # dicts, lists and tuples of tensors, numbers, strings and None

_MARK = "jaxtorch.tensor"  # the key of a dict in the outline that represents a tensor


@runtime_checkable
class Stateful(Protocol):
    """An object with a state: a module, an optimizer, a scheduler."""

    def state_dict(self) -> dict[str, object]:
        """The state."""

    def load_state_dict(self, state_dict: dict[str, object]) -> object:
        """Take a state over."""


@dataclass(frozen=True)
class StoredTensor:
    """A placeholder for a tensor in the outline.

    Attributes:
        name: the name of its array.
        dtype: "float32".
        size: the size of each dimension.
        device: "jax" or "cpu".
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    device: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.size)}"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype of the array."""
        return to_numpy(self.torch_dtype)

    @property
    def stored(self) -> bool:
        """Whether there is an array: Orbax stores no empty ones."""
        return 0 not in self.size


def slot_of(name: str, tensor: Tensor) -> StoredTensor:
    """The slot of a live tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(
        name, dtype, tuple(tensor.shape), "jax" if tensor.device.type == "jax" else "cpu"
    )


def outlined(tree: Tree, name: str, arrays: dict[str, Array]) -> Tree:
    """The outline of a tree; its arrays are added under names that begin with `name`.

    Raises:
        TypeError: a tensor has no values, or is sparse.
    """

    def outline(leaf: object, path: str) -> object:
        if not isinstance(leaf, Tensor):
            return leaf.item() if isinstance(leaf, np.generic) else leaf
        slot = slot_of(_unused(path, arrays), leaf)
        if slot.stored:
            arrays[slot.name] = _array(leaf.detach(), path)
        return {_MARK: asdict(slot)}

    return _mapped(tree, name, outline, lambda node: False)


def _unused(path: str, arrays: Mapping[str, Array]) -> str:
    """A name for an array, which Orbax takes for a file name."""
    name = path.replace("/", "|")
    while name in arrays:
        name += "'"
    return name


def filled(tree: Tree, fill: Callable[[StoredTensor], Tensor]) -> Tree:
    """The tree of an outline, with the tensors that `fill` gives for its slots."""

    def of_leaf(leaf: object, path: str) -> object:
        return fill(_slot(leaf)) if is_slot(leaf) else leaf

    return _mapped(tree, "", of_leaf, is_slot)


def slots(outline: Tree) -> Iterator[tuple[str, StoredTensor]]:
    """The slots of an outline, by path."""
    by_path: list[tuple[str, StoredTensor]] = []

    def note(leaf: object, path: str) -> object:
        if is_slot(leaf):
            by_path.append((path, _slot(leaf)))
        return None

    _mapped(outline, "", note, is_slot)
    yield from by_path


def tensors_of(tree: Tree) -> dict[str, Tensor]:
    """The live tensors of a state, by the paths that `slots` gives."""
    by_path: dict[str, Tensor] = {}

    def note(leaf: object, path: str) -> object:
        if isinstance(leaf, Tensor):
            by_path[path] = leaf
        return None

    _mapped(tree, "", note, lambda node: False)
    return by_path


def differences(what: str, live: Tree, outline: Tree) -> list[str]:
    """The differences between the outline of a state and the live state, in words."""
    here = {path: slot_of(path, tensor) for path, tensor in tensors_of(live).items()}
    there = dict(slots(outline))
    lacking = [path for path in here if path not in there]
    unknown = [path for path in there if path not in here]
    others = [
        f"{path} is {there[path]} in the checkpoint, but {here[path]} here"
        for path in here
        if path in there and str(here[path]) != str(there[path])
    ]
    sentences = [f"the checkpoint has no {_some(lacking)}"] if lacking else []
    sentences += [f"{what} has no {_some(unknown)}"] if unknown else []
    return sentences + ([_some(others)] if others else [])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def is_slot(node: object) -> TypeGuard[dict[str, dict[str, object]]]:
    """Whether a node of an outline represents a tensor."""
    return isinstance(node, dict) and _MARK in node


def _slot(node: Mapping[str, object]) -> StoredTensor:
    fields = node[_MARK]
    assert isinstance(fields, dict)
    return StoredTensor(**{**fields, "size": tuple(fields["size"])})


def _mapped(
    node: Tree,
    path: str,
    convert: Callable[[object, str], object],
    is_leaf: Callable[[object], bool],
) -> Tree:
    """The tree with its leaves converted; dicts and tuples keep their classes where that is possible."""
    if isinstance(node, dict) and not is_leaf(node):
        items = {k: _mapped(v, _below(path, k), convert, is_leaf) for k, v in node.items()}
        return items if type(node) is dict else _like(node, items)
    if isinstance(node, list | tuple):
        parts = [_mapped(v, _below(path, i), convert, is_leaf) for i, v in enumerate(node)]
        return parts if isinstance(node, list) else tuple(parts)
    return convert(node, path)


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _like(node: dict[object, object], items: dict[object, object]) -> dict[object, object]:
    copy = node.copy()  # an OrderedDict, a Counter
    copy.update(items)
    return copy


def _array(tensor: Tensor, name: str) -> Array:
    """A copy of the values of a tensor that later writes do not change.

    In several processes, Orbax stores an array of one process only if NumPy holds it.
    """
    if tensor.device.type != "jax":
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            raise TypeError(
                f"{name} has no dense values to store: it is {tensor.layout} on {tensor.device}."
            )
        return as_numpy(tensor.cpu())
    array: jax.Array = to_jax(tensor)
    if jax.process_count() > 1 and placement.is_readable(array.sharding):
        return np.array(host_values(array))
    return array


def to_bytes(outline: Tree) -> bytes:
    """An outline as bytes that `from_bytes` reads without running code.

    Raises:
        TypeError: it holds an object that cannot be stored this way.
    """
    if (data := _stored(outline)) is not None:
        return data
    _mapped(outline, "", _require_storable, lambda node: False)
    raise TypeError(_REFUSED.format("the state has an object as the key of a dict"))


def _stored(tree: Tree) -> bytes | None:
    """A tree as bytes; None if they could not be read without running code."""
    file = io.BytesIO()
    try:
        torch.save(tree, file)
        from_bytes(file.getvalue())
    except Exception:  # of any object's own way to be pickled
        return None
    return file.getvalue()


def _require_storable(leaf: object, path: str) -> None:
    if _stored(leaf) is not None:
        return
    kind = type(leaf)
    refused = _REFUSED.format(f"{path} is of the type {kind.__module__}.{kind.__qualname__}")
    hint = " Write torch.from_numpy(array)." if isinstance(leaf, np.ndarray) else ""
    raise TypeError(refused + hint)


_REFUSED = (
    "{}, which a checkpoint cannot store: it takes tensors, numbers, strings and containers of them, "
    "and objects with a state_dict method as an extra."
)


def from_bytes(data: bytes) -> Tree:
    """The outline of `to_bytes`."""
    return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
