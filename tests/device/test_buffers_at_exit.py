"""Tensors that live until the interpreter ends."""

from __future__ import annotations

import sys

import torch


def test_a_large_tensor_may_outlive_the_module_that_counts_it(monkeypatch) -> None:
    """The interpreter sets a module's names to None at its end, before it frees the last tensors."""
    errors: list[object] = []
    x = torch.ones(100_000, device="jax")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", errors.append)
        patch.setattr("jaxtorch.storage.buffer.usage", None)
        del x
    assert errors == []
