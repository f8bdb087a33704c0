"""The CTC loss: lengths on the CPU are read, then one program runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..dispatch.operation import Operation
from ..dispatch.registry import kernel
from ..lowerings.ctc import gradient, whole_loss
from ..lowerings.registry import Lowering
from ..programs import tracing

Tensor = torch.Tensor


_run_loss = Operation(None, Lowering(whole_loss), name="_ctc_loss")


_run_gradient = Operation(None, Lowering(gradient), name="_ctc_loss_backward")


Lengths = Sequence[int] | torch.Tensor


def _arguments(
    log_probs: torch.Tensor, targets: torch.Tensor, inputs: Lengths, labels: Lengths
) -> tuple[object, ...]:
    """The inputs of both programs: targets and lengths on the device, and the length of the longest target.

    Raises:
        RuntimeError: a length does not fit the tensors.
    """
    if isinstance(inputs, torch.Tensor) and isinstance(labels, torch.Tensor) and tracing.active():
        # Their values are unknown, so nothing is checked.
        return targets, inputs, labels, targets.shape[-1]
    input_lengths, target_lengths = (
        x.tolist() if isinstance(x, torch.Tensor) else list(x) for x in (inputs, labels)
    )
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    for name, lengths in (("input", input_lengths), ("target", target_lengths)):
        if len(lengths) != batch:
            raise RuntimeError(f"{name}_lengths must be of size batch_size ({batch})")
    if any(n > log_probs.shape[0] for n in input_lengths):
        raise RuntimeError(
            f"Expected input_lengths to have value at most {log_probs.shape[0]}, "
            f"but got value {max(input_lengths)}"
        )
    longest = targets.shape[-1] if targets.dim() == 2 else max(target_lengths, default=0)
    if any(n > longest for n in target_lengths) or (
        targets.dim() == 1 and sum(target_lengths) > targets.shape[0]
    ):
        raise RuntimeError("Expected targets to be at least as long as target_lengths requires")
    on_device = (torch.tensor(n).to(log_probs.device) for n in (input_lengths, target_lengths))
    return targets.to(log_probs.device), *on_device, longest


@kernel("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    arguments = _arguments(log_probs, targets, input_lengths, target_lengths)
    return _run_loss(log_probs, *arguments, blank, zero_infinity)


@kernel("ctc_loss.Tensor")
def reduced_ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """As torch's kernel, which reads the lengths; inside a trace they have no values, and the tensors are used."""
    if not tracing.active():
        lengths = (x.tolist() for x in (input_lengths, target_lengths))
        return torch.ops.aten.ctc_loss.IntList(
            log_probs, targets, *lengths, blank, reduction, zero_infinity
        )
    targets, inputs, labels = (
        x.to(log_probs.device) for x in (targets, input_lengths, target_lengths)
    )
    losses, _ = torch.ops.aten._ctc_loss.Tensor(
        log_probs, targets, inputs, labels, blank, zero_infinity
    )
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0, losses)
    if reduction == 1:
        return (losses / labels.clamp_min(1)).mean()
    return losses.sum() if reduction == 2 else losses


@kernel("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    arguments = _arguments(log_probs, targets, input_lengths, target_lengths)
    return _run_gradient(grad, log_probs, *arguments, blank, zero_infinity)
