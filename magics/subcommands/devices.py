"""`%jax devices`: the devices, and how an array is sharded over them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import jax
import torch
from IPython.core.error import UsageError

from jaxtorch.insight.sharding import Drawing, sharding_of
from jaxtorch.widgets.devices import DevicesView

from .table import Invocation, subcommand


@subcommand(
    "devices",
    example="devices",
    help="the devices, or how a tensor is sharded over them",
    statement=True,
)
def devices(call: Invocation) -> DevicesView:
    """The devices of the session, or the sharding of an array."""
    text = call.arguments.statement
    if not text:
        return DevicesView()
    try:
        return DevicesView(_looker(text, call.shell.user_ns), text)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"`%jax devices {text}`: {reason}.") from None


def _looker(text: str, names: dict[str, Any]) -> Callable[[], Drawing]:
    """A function that returns the current sharding. It looks up names on every call; other expressions run once."""

    def look() -> Drawing:
        return sharding_of(eval(text, dict(names)))

    if _is_path(ast.parse(text, mode="eval").body, names):
        return look
    drawn = look()
    return lambda: drawn


def _is_path(node: ast.expr, names: dict[str, Any]) -> bool:
    """Whether an expression only looks up objects: `model[0].weight` does, `x[0]` and `x.T` of a tensor do not."""
    if isinstance(node, ast.Name):
        return True
    if not (
        isinstance(node, ast.Attribute)
        or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant))
    ):
        return False
    within = node.value
    return _is_path(within, names) and not isinstance(
        eval(ast.unparse(within), dict(names)), torch.Tensor | jax.Array
    )
