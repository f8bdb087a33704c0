"""The CPU fallback: runs an operator on copies of its arguments, and warns once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..base.options import config
from ..base.torch_private import OpOverload
from ..programs import stats, tracing
from ..programs.site import user_line, warn
from ..programs.untraceable import Untraceable
from .schema import Arguments, Signature

Tensor = torch.Tensor


def on_cpu(
    op: OpOverload,
    signature: Signature,
    args: Arguments,
    kwargs: Mapping[str, object],
    announce: bool = True,
) -> object:
    """Run an operator's CPU kernel on copies, and copy what it returned or wrote back to the device."""
    if announce:
        name = op._schema.name + ("" if op._overloadname == "default" else f".{op._overloadname}")
        _announce(name)
    arguments = signature.complete(args, kwargs)
    copies = [_copied(a) for a in arguments]
    result = signature.call(op, copies)
    back: dict[int, Tensor] = {}
    for i in signature.written:
        for original, copy in zip(_tensors(arguments[i]), _tensors(copies[i]), strict=True):
            if original.shape != copy.shape:
                original.resize_(copy.shape)
            original.copy_(copy)
            back[id(copy)] = original
    return _returned(result, back)


def _announce(name: str) -> None:
    if tracing.active():
        raise Untraceable(
            f"{name} is not implemented for the jax device and cannot run inside a trace"
        )
    mode = config.fallback
    if mode == "error":
        raise NotImplementedError(
            f"{name} is not implemented for the jax device{user_line()}, and jaxtorch.config(fallback='error') "
            "forbids running it on the CPU. Move its inputs with .cpu(), or set fallback='warn'."
        )
    if stats.count_fallback(name) == 1 and mode == "warn":
        warn(
            f"{name} is not implemented for the jax device: it runs on the CPU, which waits for its inputs and copies "
            "inputs and results between the devices. This warning appears once per operator; "
            "`jaxtorch.fallbacks()` counts the calls.",
        )


def _copied(a: object) -> object:
    if isinstance(a, Tensor):
        return a.cpu() if a.device.type == "jax" else a
    if isinstance(a, list | tuple):
        return [_copied(item) for item in a]
    if isinstance(a, torch.device):
        return torch.device("cpu")
    return a


def _tensors(a: object) -> list[Tensor]:
    if isinstance(a, Tensor):
        return [a]
    return [t for item in a for t in _tensors(item)] if isinstance(a, list | tuple) else []


def _returned(result: Any, back: dict[int, Tensor]) -> Any:
    if isinstance(result, Tensor):
        original = back.get(id(result))
        return result.to("jax") if original is None else original
    if isinstance(result, list | tuple):
        return type(result)(_returned(item, back) for item in result)
    return result
