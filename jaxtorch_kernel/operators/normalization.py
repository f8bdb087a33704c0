"""Batch normalization that updates running statistics."""

from __future__ import annotations

from typing import Any

import torch

from ..dispatch.registry import kernel
from ..dispatch.targets import write_out
from .choice import operation_of

Tensor = torch.Tensor


@kernel("native_batch_norm", "_native_batch_norm_legit")
def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the overload that reads and writes no more than necessary.

    The schema of `native_batch_norm` does not say that it writes the running statistics in training. The schema of
    `_native_batch_norm_legit` always says so, although it does not write them in evaluation.
    """
    legit = torch.ops.aten._native_batch_norm_legit
    if training and running_mean is None:
        return operation_of(legit.no_stats)(input, weight, bias, True, momentum, eps)
    tensors = (input, weight, bias, running_mean, running_var)
    if training:
        return operation_of(legit.default)(*tensors, True, momentum, eps)
    evaluate = operation_of(torch.ops.aten._native_batch_norm_legit_no_training.default)
    # In evaluation torch returns empty statistics, other than its Meta kernel.
    return evaluate(*tensors, momentum, eps)[0], input.new_empty(0), input.new_empty(0)


@kernel("native_batch_norm.out", "_native_batch_norm_legit.out")
def native_batch_norm_out(
    *args: Any, out: Tensor, save_mean: Tensor, save_invstd: Tensor
) -> tuple[Tensor, ...]:
    """`native_batch_norm` into tensors that are resized."""
    targets = (out, save_mean, save_invstd)
    return tuple(map(write_out, targets, native_batch_norm(*args)))
