"""Operators that Hugging Face Transformers defines, where its own kernels look at values.

Under `torch.compile`, and so in captured code, its mixtures of experts in float32 call an operator of its own for the
products of each expert's tokens. The operator's kernel reads how many tokens each expert has, and loops over them. The
device has the same products as torch's `grouped_mm`, without a look at the values.
"""

from __future__ import annotations

import torch
from torch.nn.functional import grouped_mm as product

from ..dispatch.registry import kernel_elsewhere

Tensor = torch.Tensor


@kernel_elsewhere("transformers::grouped_mm_fallback")
def grouped_mm(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """The rows (S, K), of which `offs` (E,) has the end of each group, times the matrices (E, K, N)."""
    return product(input, weight, offs=offs)


@kernel_elsewhere("transformers::grouped_mm_fallback_backward")
def grouped_mm_backward(
    input: Tensor, weight: Tensor, offs: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients (S, K) and (E, K, N) from that of the result (S, N)."""
    return (
        product(grad_output, weight.mT, offs=offs),
        product(input.mT, grad_output, offs=offs),
    )
