"""Operators that Hugging Face Transformers defines, where its own kernels look at values.

Under `torch.compile`, and so in captured code, its mixtures of experts in float32 call an operator of its own for the
products of each expert's tokens. The operator's kernel reads how many tokens each expert has, and loops over them. The
device has the same products as torch's `_grouped_mm`, without a look at the values.
"""

from __future__ import annotations

import torch

from ..dispatch.registry import kernel_elsewhere

Tensor = torch.Tensor
_grouped_mm = torch._grouped_mm


@kernel_elsewhere("transformers::grouped_mm_fallback")
def grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """The rows (S, K), of which `offs` (E,) has the end of each group, times the matrices (E, K, N)."""
    return _grouped_mm(input, weight, offs=offs)


@kernel_elsewhere("transformers::grouped_mm_fallback_backward")
def grouped_mm_backward(
    input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients (S, K) and (E, K, N) from that of the result (S, N)."""
    return (
        _grouped_mm(grad_output, weight.mT, offs=offs),
        _grouped_mm(input.mT, grad_output, offs=offs),
    )
