"""Why code must be traced again, in words: the difference between two states of what it depends on."""

from __future__ import annotations

import re
import types
from typing import Any

import numpy as np
import torch

from .dependencies import Held, Same, TensorLook, Value

State = dict[str, Any]  # path -> what stands there

_HOOK = re.compile(r"\._\w*hooks\w*\[\d+\]")


def differences(before: State, after: State) -> list[str]:
    """What changed, one phrase each, the outermost first; what lies inside of something changed is not repeated.

    Example:
        >>> from jaxtorch.capture.dependencies import Value
        >>> differences({"p": Value(float, "0.5")}, {"p": Value(float, "0.3")})
        ['p 0.5 -> 0.3']
    """
    phrases: dict[str, None] = {}
    told: list[str] = []
    for path in [*after, *(p for p in before if p not in after)]:
        old, new = before.get(path), after.get(path)
        if old == new or any(path.startswith(t) and path[len(t)] in ".[" for t in told):
            continue
        phrases[_phrase(path, old, new)] = None
        if not isinstance(new, TensorLook):
            told.append(path)
    return list(phrases)


def nearest(states: list[State], now: State) -> list[str]:
    """The differences from the state that is most like this one, the later of two."""
    return min((differences(s, now) for s in reversed(states)), key=len, default=[])


def _phrase(path: str, old: Any, new: Any) -> str:
    hook = _HOOK.search(path)
    if hook is not None:
        where = path[: hook.start()]
        if old is None:
            return f"a hook was added to {where}"
        return f"a hook of {where} was {'removed' if new is None else 'changed'}"
    if old is None or new is None:
        return f"{path} {'is new' if old is None else 'is gone'}"
    if isinstance(old, types.CodeType) or isinstance(new, types.CodeType):
        return f"function {path} was defined anew"
    if isinstance(old, TensorLook) and isinstance(new, TensorLook):
        return _tensors(path, old, new)
    if isinstance(old, Value) and isinstance(new, Value):
        return _values(path, old, new)
    if isinstance(old, Held) and isinstance(new, Held) and old.same == new.same:
        if old.version != new.version:
            return f"{path}, a tensor on the CPU, was written to"
        return f"{path} {_gradient(new)}"
    kind = new.kind if isinstance(new, Same) else "tensor" if isinstance(new, Held) else "object"
    return f"{path} is another {kind}"


def _gradient(tensor: Held | TensorLook) -> str:
    return f"requires {'a' if tensor.requires_grad else 'no'} gradient now"


def _tensors(path: str, old: TensorLook, new: TensorLook) -> str:
    if old.dtype != new.dtype:
        return f"{path} {_short(old.dtype)} -> {_short(new.dtype)}"
    if len(old.shape) != len(new.shape):
        return f"{path} {old.shape} -> {new.shape}"
    sizes = [
        f"{path}[{i}] {a} -> {b}"
        for i, (a, b) in enumerate(zip(old.shape, new.shape, strict=True))
        if a != b
    ]
    if sizes:
        return ", ".join(sizes)
    if old.device != new.device:
        return f"{path} {old.device} -> {new.device}"
    return f"{path} {_gradient(new)}"


def _values(path: str, old: Value, new: Value) -> str:
    if old.type in (list, tuple, dict) and old.type is new.type:
        return f"{path} has {new.value} items where it had {old.value}"
    if {np.ndarray, torch.Tensor, set, frozenset} & {old.type, new.type}:
        return f"{path} has other contents"
    return f"{path} {_shown(old)} -> {_shown(new)}"


def _shown(value: Value) -> str:
    text = str(value.value) if value.type is float else repr(value.value)
    return text if len(text) <= 30 else text[:27] + "..."


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
