"""The return value of an operator: new tensors over a program's outputs, or the tensors that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import torch

from ..base import torch_private as private
from ..base import torch_views
from ..programs import watching
from ..programs.errors import mixed_devices
from ..programs.site import origin
from ..storage.buffer import Named, Spec
from .schema import Signature, short_name

Tensor = torch.Tensor
_empty = private.create_empty_tensor
# (new results, the call's tensors) -> return value
Structure = Callable[[list[Tensor | None], Sequence[Tensor]], object]


class Fresh:
    """A new tensor over one output of a program.

    Attributes:
        stride: None if the tensor is contiguous.
        spec: of its buffer; set once the program is traced.
        name: of the operator that computes it.
    """

    __slots__ = ("dtype", "name", "size", "spec", "stride")

    def __init__(
        self,
        size: tuple[int, ...],
        dtype: torch.dtype,
        stride: tuple[int, ...] | None,
        spec: Spec | None,
        name: str = "",
    ):
        self.size, self.dtype, self.stride = size, dtype, stride
        self.spec: Spec = spec  # type: ignore[assignment]  # set before the first use
        self.name = name


class Written(NamedTuple):
    """The origin of a buffer that an operator wrote. It is not the program, which a tensor must not keep alive."""

    name: str


def flatten(tree: object) -> list[Any]:
    """The leaves of nested lists and tuples, None included."""
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in flatten(item)]
    return [tree]


def wrap_result(leaf: Fresh, array: jax.Array, maker: Named) -> Tensor:
    """A tensor over one output of a program. `maker`, which has a name, is recorded as its origin."""
    result = _empty(leaf.size, leaf.dtype)
    spec = leaf.spec
    buffer = spec.buffer(array, spec, origin(maker))
    result.untyped_storage().buffer = buffer  # type: ignore[attr-defined]
    if watching.watcher is not None:
        watching.watcher.add_result(buffer)
    return result if leaf.stride is None else torch_views.as_strided(result, leaf.size, leaf.stride)


class Results:
    """The return value of a program.

    Attributes:
        leaves: one for each result; None for a result that is None.
        structure: assembles the return value.
    """

    __slots__ = ("leaves", "structure")

    def __init__(self, leaves: list[Fresh | None], structure: Structure):
        self.leaves, self.structure = leaves, structure

    def only(self) -> Fresh | None:
        """The result, if there is exactly one and it is contiguous."""
        leaf = self.leaves[0] if len(self.leaves) == 1 and self.structure is single else None
        return leaf if leaf is not None and leaf.stride is None else None

    def wrap(self, outputs: Sequence[jax.Array], tensors: Sequence[Tensor]) -> object:
        """The operator's return value, from the new outputs of the program and the tensors of the call."""
        rest = iter(outputs)
        results = [
            None if leaf is None else wrap_result(leaf, next(rest), leaf) for leaf in self.leaves
        ]
        return self.structure(results, tensors)


def plain_structure(results: list[Tensor | None], tensors: Sequence[Tensor]) -> object:
    """Structure of a JAX function that is not an operator of torch."""
    return results[0] if len(results) == 1 else tuple(results)


def tuple_of(results: list[Tensor | None], tensors: Sequence[Tensor]) -> object:
    """Structure of an operator with several results."""
    return tuple(results)


def list_of(results: list[Tensor | None], tensors: Sequence[Tensor]) -> object:
    """Structure of an operator that returns a list."""
    return results


def nothing(results: list[Tensor | None], tensors: Sequence[Tensor]) -> None:
    """Structure of an operator that returns nothing."""
    return


@dataclass(frozen=True)
class Returned:
    """Structure of an operator that returns tensors that it wrote.

    Attributes:
        indices: of these among the tensors of the call.
        structure: of the return value.
    """

    indices: tuple[int, ...]
    structure: Structure

    def __call__(self, results: list[Tensor | None], tensors: Sequence[Tensor]) -> object:
        return self.structure([tensors[i] for i in self.indices], tensors)


def single(results: list[Tensor | None], tensors: Sequence[Tensor]) -> Tensor | None:
    """Structure of an operator with one result."""
    return results[0]


def effects(
    signature: Signature, args: Sequence[object], tensors: Sequence[Tensor]
) -> tuple[list[int], Structure]:
    """The indices of the tensors that a call writes, and how its return value is assembled.

    Raises:
        RuntimeError: it would write to a tensor on the CPU, as in `total = torch.tensor(0.0); total += loss`.
    """
    if signature.op is None:
        return [], plain_structure
    ids = {id(t): i for i, t in enumerate(tensors)}
    targets = [t for i in signature.written for t in flatten(args[i]) if t is not None]
    for t in targets:
        if id(t) not in ids:
            raise mixed_devices(short_name(signature.op), t.device)
    written = [ids[id(t)] for t in targets]
    lists = signature.returns_list
    if not written or signature.fresh:
        if lists == (False,):
            return written, single
        return written, list_of if lists == (True,) else tuple_of
    if not lists:
        return written, nothing
    if lists == (False,):
        return written, Returned((written[0],), single)
    return written, Returned(tuple(written), list_of if lists == (True,) else tuple_of)


def written_by_position(
    signature: Signature, args: Sequence[object], tensors: Sequence[Tensor]
) -> list[list[int]]:
    """For each position of the lists that a call writes, the indices of the tensors that are written for it.

    They are in the order of the schema; a tensor that is written besides the lists is among those of each position.
    Empty for a call that writes no list, and for `out=`, which is written after everything is computed.
    """
    if signature.is_out:
        return []
    ids = {id(t): i for i, t in enumerate(tensors)}
    targets = [args[i] for i in signature.written]
    lists = [a for a in targets if isinstance(a, list | tuple) and a]
    return [
        [
            ids[id(a[position] if isinstance(a, list | tuple) else a)]
            for a in targets
            if isinstance(a, Tensor) or a
        ]
        for position in range(min(map(len, lists), default=0))
    ]
