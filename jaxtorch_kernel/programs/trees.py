"""Nested arguments and results, split into the operands of a program and everything else.

A torch or JAX function takes and returns nested containers; a program takes and returns a flat list of arrays. A `Tree`
stores the containers and the leaves that are not operands (numbers, strings, None), and puts operands back into them.
It does not store the operands, which may be tracers or large arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeGuard

import jax
import torch
from jax.tree_util import PyTreeDef

from ..base.torch_private import pytree


def is_tensor(leaf: object) -> bool:
    """Whether a leaf is a torch tensor, on any device."""
    return isinstance(leaf, torch.Tensor)


def is_device_tensor(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether a leaf is a tensor on the jax device."""
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "jax"


class Tree:
    """A value without its operands.

    Args:
        leaves: all leaves of the value.
        structure: its containers.
        is_operand: whether a leaf is an operand.
        unflatten: makes the value from its leaves.

    Attributes:
        structure: the containers, comparable with `==`.
        indices: the indices of the operands among the leaves.
        statics: all leaves, with None for operands.
    """

    def __init__(
        self,
        leaves: Sequence[object],
        structure: pytree.TreeSpec | PyTreeDef,
        is_operand: Callable[[object], bool],
        unflatten: Callable[[list[object]], Any],
    ):
        self.structure = structure
        self.indices = [i for i, leaf in enumerate(leaves) if is_operand(leaf)]
        self.statics = list(leaves)
        for index in self.indices:
            self.statics[index] = None
        self._unflatten = unflatten

    def leaves(self, operands: Iterable[object]) -> list[object]:
        """All leaves, with these operands among them."""
        leaves = list(self.statics)
        for index, operand in zip(self.indices, operands, strict=True):
            leaves[index] = operand
        return leaves

    def filled(self, operands: Iterable[object]) -> Any:
        """The value with these operands in it."""
        return self._unflatten(self.leaves(operands))


def split(
    value: object, is_operand: Callable[[object], bool] = is_tensor
) -> tuple[list[Any], Tree]:
    """The operands of a value of torch code, and its tree. Containers are those that torch's pytree registry knows.

    Example:
        >>> operands, tree = split({"x": torch.ones(2), "power": 2})
        >>> [tuple(t.shape) for t in operands], tree.statics
        ([(2,)], [None, 2])
        >>> tree.filled(["here"])
        {'x': 'here', 'power': 2}
    """
    leaves, structure = pytree.tree_flatten(value)
    unflatten = partial(pytree.tree_unflatten, treespec=structure)
    tree = Tree(leaves, structure, is_operand, unflatten)
    return [leaves[index] for index in tree.indices], tree


def split_jax(value: object, is_operand: Callable[[object], bool]) -> tuple[list[Any], Tree]:
    """The operands of a value of a JAX function, and its tree. Containers are JAX's pytrees; None is a leaf."""
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda leaf: leaf is None)
    tree = Tree(leaves, structure, is_operand, partial(jax.tree.unflatten, structure))
    return [leaves[index] for index in tree.indices], tree
