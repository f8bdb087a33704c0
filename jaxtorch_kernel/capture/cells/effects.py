"""Predicts from a cell's code, before it runs, whether it has effects that a program must write back.

The effects are: filling gradients, stepping an optimizer, and writing into a tensor that existed before the cell. The
first two are searched for in all user code that the cell reaches by name (`capture/reach.py`). Writes into tensors are
searched for only in the cell itself, where the name identifies the tensor.

This is a guess from names, and both kinds of mistake are harmless. If an effect is hidden (in a library, behind
`getattr`), `%%pure` refuses the cell. If a cell only looks as if it wrote, it becomes a program of `%%jit`, whose
results have no gradient.
"""

from __future__ import annotations

import ast

import torch

from ...base.torch_private import pytree
from ..dependencies.reads import names_read
from ..reach import Reach
from .code import CellCode


def has_effects(code: CellCode, names: dict[str, object]) -> bool:
    """Whether a cell seems to write into tensors, gradients or optimizers of a namespace."""
    reach = Reach(names, set(code.sets) - set(code.reads))
    for name in code.reads:
        reach.name(name)
    reached = [code.code, *reach.codes]
    if reach.optimizers or any("backward" in names_read(c).attributes for c in reached):
        return True
    tensors = {n for n in code.reads if _holds_tensor(names.get(n))}
    return any(
        _root(target) in tensors for node in ast.walk(code.tree) for target in _targets(node)
    )


def _holds_tensor(value: object) -> bool:
    if isinstance(value, torch.nn.Module):
        return True
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _targets(node: ast.AST) -> list[ast.expr]:
    """The expressions that a piece of code writes into: `x` in `x += 1`, `x[0] = 1`, `x.add_(1)`, `F.relu_(x)`."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, ast.Subscript)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        if name.endswith("_") and not name.endswith("__"):
            return [node.func.value, *node.args[:1]]
    return []


def _root(node: ast.AST) -> str | None:
    """The name that an expression begins with.

    Example:
        >>> _root(ast.parse("model.weight.data[0]", mode="eval").body)
        'model'
    """
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
