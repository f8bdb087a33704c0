"""The tensors that code can reach by name, before it runs: for what must be known of them before, such as their `.grad`."""

from __future__ import annotations

import types
from typing import Any

import torch


def tensors_in_reach(function: Any, leaves: list[Any]) -> list[torch.Tensor]:
    """The tensors among `leaves`, and in the function's defaults, closure and globals, one level into objects."""
    found: dict[int, torch.Tensor] = {}
    for value in [*leaves, *_reachable(function)]:
        if isinstance(value, torch.Tensor):
            tensors = [value]
        elif isinstance(value, torch.nn.Module):
            tensors = list(value.parameters())
        elif isinstance(value, torch.optim.Optimizer):
            tensors = [p for group in value.param_groups for p in group["params"]]
        else:
            continue
        found.update((id(t), t) for t in tensors)
    return list(found.values())


def _reachable(function: Any) -> list[Any]:
    """Everything that a function names, one level into containers and objects."""
    own = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if hasattr(function, "reached"):  # it knows better, as a cell does
        return list(function.reached())
    code = getattr(function, "__code__", None)
    values = [] if own is None else [own]
    if isinstance(function, torch.nn.Module):
        values.append(function)
    if code is not None:
        table = function.__globals__
        values += [table[name] for name in code.co_names if name in table]
        values += [_contents(cell) for cell in function.__closure__ or ()]
        values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    found = []
    for value in values:
        found.append(value)
        if isinstance(value, dict):
            found += value.values()
        elif isinstance(value, list | tuple):
            found += value
        elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType):
            found += vars(value).values()
    return found


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
