"""CTC loss and its gradient against the CPU, and what its lengths compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import ctc_loss

import jaxtorch
from jaxtorch.base.options import config

STEPS, BATCH, CLASSES, LONGEST = 12, 3, 5, 4


def _both(targets: Any, inputs: Any, labels: Any, **keywords: Any) -> None:
    """Loss and gradient on both devices."""
    logits = torch.randn(STEPS, BATCH, CLASSES, generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", "jax"):
        leaf = logits.clone().to(device).requires_grad_()
        with config(fallback="error"):
            losses = ctc_loss(leaf.log_softmax(2), targets.to(device), inputs, labels, **keywords)
            losses.sum().backward()
        results.append((losses.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(*reversed(results), rtol=1e-4, atol=1e-5, equal_nan=True)


PADDED = torch.tensor([[1, 1, 2, 3], [4, 3, 2, 0], [2, 0, 0, 0]])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_padded_targets(reduction: str) -> None:
    _both(PADDED, [12, 9, 7], [4, 3, 1], reduction=reduction)


def test_concatenated_targets_and_another_blank() -> None:
    targets = torch.tensor([1, 1, 2, 3, 0, 3, 2, 2])
    _both(targets, [12, 9, 7], [4, 3, 1], blank=4, reduction="none")


def test_lengths_as_tensors_and_an_empty_labelling() -> None:
    _both(PADDED, torch.tensor([12, 9, 7]), torch.tensor([4, 0, 1]), reduction="none")


def test_an_impossible_labelling_costs_infinity_or_nothing() -> None:
    _both(PADDED, [12, 2, 7], [4, 3, 1], reduction="none", zero_infinity=True)
    log_probs = torch.zeros(STEPS, BATCH, CLASSES, device="jax")
    losses = ctc_loss(log_probs, PADDED.to("jax"), [12, 2, 7], [4, 3, 1], reduction="none")
    assert losses.isinf().tolist() == [False, True, False]


def test_other_lengths_compile_nothing() -> None:
    log_probs = torch.randn(STEPS, BATCH, CLASSES, device="jax").log_softmax(2)
    targets = PADDED.to("jax")
    ctc_loss(log_probs, targets, [12, 9, 7], [4, 3, 1])
    before = jaxtorch.compile_count()
    ctc_loss(log_probs, targets, [10, 11, 7], [2, 3, 1])
    assert jaxtorch.compile_count() == before


def test_lengths_that_do_not_fit_are_refused() -> None:
    log_probs = torch.zeros(STEPS, BATCH, CLASSES, device="jax")
    with pytest.raises(RuntimeError, match="input_lengths"):
        ctc_loss(log_probs, PADDED.to("jax"), [13, 9, 7], [4, 3, 1])
    with pytest.raises(RuntimeError, match="target"):
        ctc_loss(log_probs, PADDED.to("jax"), [12, 9, 7], [5, 3, 1])


WAYS: dict[str, Any] = {
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_captured_with_lengths_on_the_cpu(way: str, reduction: str) -> None:
    """As a data loader has them, and as eager code accepts them."""
    log_probs = torch.randn(STEPS, BATCH, CLASSES).log_softmax(2)
    inputs, labels = torch.tensor([12, 9, 7]), torch.tensor([4, 3, 1])

    def loss(x: torch.Tensor) -> torch.Tensor:
        return ctc_loss(x, PADDED, inputs, labels, reduction=reduction)

    captured = WAYS[way](loss)
    for _ in range(2):
        torch.testing.assert_close(captured(log_probs.to("jax")).cpu(), loss(log_probs))
        inputs.sub_(1)  # the next run sees it
