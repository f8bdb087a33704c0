"""Batch normalization that updates running statistics."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch.registry import kernel
from .choice import operation_of

Tensor = torch.Tensor


@kernel("native_batch_norm", "_native_batch_norm_legit")
def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """Choose the form that reads and writes no more than it must.

    The schema of `native_batch_norm` hides that it writes the running statistics in training; that
    of `_native_batch_norm_legit` says so, also where it does not.
    """
    legit = torch.ops.aten._native_batch_norm_legit
    arrays: tuple[Any, ...] = (input, weight, bias)
    if training and running_mean is None:
        return operation_of(legit.no_stats)(*arrays, True, momentum, eps)
    arrays += (running_mean, running_var)
    if training:
        return operation_of(legit.default)(*arrays, True, momentum, eps)
    evaluate = operation_of(torch.ops.aten._native_batch_norm_legit_no_training.default)
    # Nothing was measured: torch returns empty statistics (its Meta kernel does not know).
    return evaluate(*arrays, momentum, eps)[0], input.new_empty(0), input.new_empty(0)


@kernel("native_batch_norm.out", "_native_batch_norm_legit.out")
def native_batch_norm_out(
    *args: Any, out: torch.Tensor, save_mean: torch.Tensor, save_invstd: torch.Tensor
) -> tuple[Any, ...]:
    targets = (out, save_mean, save_invstd)
    for target, value in zip(targets, native_batch_norm(*args), strict=True):
        if target.shape != value.shape:
            target.resize_(value.shape)
        target.copy_(value)
    return targets
