"""The return values of an operator: new tensors around a program's outputs, or the tensors that it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..base import torch_private as private
from ..programs import watching
from ..programs.site import origin
from .schema import Signature

Tensor = torch.Tensor
_empty = private.create_empty_tensor
Structure = Callable[
    [list[Any], list[Tensor]], Any
]  # (fresh results, the call's tensors) -> return value


class Fresh:
    """A result with its own buffer, computed by the operator `name`. `stride` is None if it is contiguous."""

    __slots__ = ("dtype", "name", "size", "spec", "stride")

    def __init__(self, size: Any, dtype: torch.dtype, stride: Any, spec: Any, name: str = ""):
        self.size, self.dtype, self.stride, self.spec = size, dtype, stride, spec
        self.name = name


class Written(NamedTuple):
    """What a buffer's origin says of an operator that wrote to it: not the program, which a tensor must not keep."""

    name: str


def flatten(tree: Any) -> list[Any]:
    """The leaves of nested lists and tuples, None included."""
    if isinstance(tree, list | tuple):
        return [leaf for item in tree for leaf in flatten(item)]
    return [tree]


def wrap_result(leaf: Fresh, array: Any, maker: Any) -> Tensor:
    """A tensor over one output of a program; `maker`, which has a name, is what its origin says."""
    result = _empty(leaf.size, leaf.dtype)
    spec = leaf.spec
    buffer = spec.buffer(array, spec, origin(maker))
    result.untyped_storage().buffer = buffer  # type: ignore[attr-defined]  # ours, hung on it
    if watching.watcher is not None:
        watching.watcher.add_result(buffer)
    return result if leaf.stride is None else private.as_strided(result, leaf.size, leaf.stride)


def results_of(program: Any, outputs: Any, tensors: list[Tensor]) -> Any:
    """The operator's return value, from a program's new outputs and the tensors of the call."""
    if program.single:
        return wrap_result(program.only, outputs[0], program.only)
    iterator = iter(outputs)
    results = [
        None if leaf is None else wrap_result(leaf, next(iterator), leaf) for leaf in program.leaves
    ]
    return program.structure(results, tensors)


def plain_structure(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of a JAX function of our own."""
    return results[0] if len(results) == 1 else tuple(results)


def tuple_of(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of an operator with several results."""
    return tuple(results)


def list_of(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of an operator that returns a list."""
    return results


def nothing(results: list[Any], tensors: list[Tensor]) -> None:
    """Structure of an operator that returns nothing."""
    return


def single(results: list[Any], tensors: list[Tensor]) -> Any:
    """Structure of an operator with one result."""
    return results[0]


def effects(
    signature: Signature | None, args: tuple[Any, ...], tensors: list[Tensor]
) -> tuple[list[int], Structure]:
    """Which described tensors are written, and how the operator's return value is assembled."""
    if signature is None:
        return [], plain_structure
    ids = {id(t): i for i, t in enumerate(tensors)}
    written = [
        ids[id(t)]
        for i in signature.written
        for t in flatten(list(args[i]) if isinstance(args[i], list | tuple) else args[i])
        if t is not None
    ]
    lists = signature.returns_list
    if not written or signature.fresh:
        if lists == (False,):
            return written, single
        return written, list_of if lists == (True,) else tuple_of
    if not lists:
        return written, nothing
    if lists == (True,):
        return written, lambda _, ts: [ts[i] for i in written]
    if len(lists) == 1:
        only = written[0]
        return written, lambda _, ts: ts[only]
    return written, lambda _, ts: tuple(ts[i] for i in written)
