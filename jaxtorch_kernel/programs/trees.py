"""Nested arguments and results, split into the operands of a program and everything else.

A torch or JAX function takes and returns nested containers; a program takes and returns a flat list of arrays. A `Tree`
keeps the containers and the leaves that are not operands (numbers, strings, None), and puts operands back into them. It
does not keep the operands, which may be tracers or large arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import jax
import torch
from torch.utils import _pytree as pytree


def is_tensor(leaf: object) -> bool:
    """Whether a leaf is a torch tensor, on any device."""
    return isinstance(leaf, torch.Tensor)


def is_device_tensor(leaf: object) -> TypeGuard[torch.Tensor]:
    """Whether a leaf is a tensor on the jax device."""
    return isinstance(leaf, torch.Tensor) and leaf.device.type == "jax"


class Tree:
    """A value without its operands.

    Attributes:
        structure: the containers, comparable with `==`; torch's `TreeSpec` or JAX's `PyTreeDef`.
        places: the indices of the operands among the leaves.
        statics: all leaves, with None for operands.
    """

    def __init__(
        self,
        leaves: list[Any],
        structure: Any,
        is_operand: Callable[[Any], bool],
        unflatten: Callable[[Any, list[Any]], Any],
    ):
        self.structure = structure
        self.places = [i for i, leaf in enumerate(leaves) if is_operand(leaf)]
        self.statics = list(leaves)
        for place in self.places:
            self.statics[place] = None
        self._unflatten = unflatten

    def leaves(self, operands: Iterable[Any]) -> list[Any]:
        """All leaves, with these operands among them."""
        leaves = list(self.statics)
        for place, operand in zip(self.places, operands, strict=True):
            leaves[place] = operand
        return leaves

    def filled(self, operands: Iterable[Any]) -> Any:
        """The value with these operands in it."""
        return self._unflatten(self.structure, self.leaves(operands))


def split(value: Any, is_operand: Callable[[Any], bool] = is_tensor) -> tuple[list[Any], Tree]:
    """The operands of a value of torch code, and its tree. Containers are those that torch's pytree registry knows.

    Example:
        >>> operands, tree = split({"x": torch.ones(2), "power": 2})
        >>> [tuple(t.shape) for t in operands], tree.statics
        ([(2,)], [None, 2])
        >>> tree.filled(["here"])
        {'x': 'here', 'power': 2}
    """
    leaves, structure = pytree.tree_flatten(value)
    return _split(leaves, structure, is_operand, _unflatten_torch)


def split_jax(value: Any, is_operand: Callable[[Any], bool]) -> tuple[list[Any], Tree]:
    """The operands of a value of a JAX function, and its tree. Containers are JAX's pytrees; None is a leaf."""
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda leaf: leaf is None)
    return _split(leaves, structure, is_operand, jax.tree.unflatten)


def _split(
    leaves: list[Any],
    structure: Any,
    is_operand: Callable[[Any], bool],
    unflatten: Callable[[Any, list[Any]], Any],
) -> tuple[list[Any], Tree]:
    tree = Tree(leaves, structure, is_operand, unflatten)
    return [leaves[place] for place in tree.places], tree


def _unflatten_torch(structure: Any, leaves: list[Any]) -> Any:
    return pytree.tree_unflatten(leaves, structure)
