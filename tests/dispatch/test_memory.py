"""Buffers die with their tensors, in-place updates donate, nothing grows."""

from __future__ import annotations

import gc

import torch
from torch import nn


def test_memory_is_back_after_del() -> None:
    gc.collect()
    before = torch.jax.memory_allocated()
    x = torch.ones(1000, 1000, device="jax")
    assert torch.jax.memory_allocated() - before >= x.nbytes
    y = x + 1
    view = y[10:]
    del x, y
    gc.collect()
    assert torch.jax.memory_allocated() - before >= view.numel() * 4
    del view
    gc.collect()
    assert torch.jax.memory_allocated() - before < 10_000


def test_in_place_updates_donate() -> None:
    x = torch.ones(1000, device="jax")
    buffer = x.untyped_storage().buffer
    x.add_(1)  # compiled, first run
    old = buffer.array
    del old
    held = buffer.array
    x.add_(1)
    assert not held.is_deleted(), "an array that somebody else holds must not be donated"
    assert held[0] == 2
    import weakref

    alive = weakref.ref(buffer.array)
    pointer = buffer.array.unsafe_buffer_pointer()
    del held
    x.add_(1)
    assert alive() is None or alive().is_deleted()
    assert buffer.array.unsafe_buffer_pointer() == pointer
    assert x[0].item() == 4


def test_saved_for_backward_is_not_clobbered_by_donation() -> None:
    x = torch.ones(3, device="jax", requires_grad=True)
    y = x * 2
    z = y.detach().clone()
    out = (y * y).sum()
    z.add_(1)
    out.backward()
    assert x.grad.cpu().tolist() == [8.0, 8.0, 8.0]


def test_a_write_to_both_arguments_of_a_call() -> None:
    x = torch.arange(4.0, device="jax")
    x.add_(x)
    assert x.cpu().tolist() == [0.0, 2, 4, 6]
    x[:2].add_(x[2:])
    assert x.cpu().tolist() == [4.0, 8, 4, 6]
    x[1:].copy_(x[:-1].clone())
    assert x.cpu().tolist() == [4.0, 4, 8, 4]


def test_a_thousand_steps_do_not_grow() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to("jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(4, 8, device="jax"), torch.tensor([0, 1, 0, 1], device="jax")

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    # The cache of numbers (a step's bias corrections are new ones) holds 512 small vectors; fill it.
    for _ in range(250):
        step()
    gc.collect()
    before = torch.jax.memory_allocated()
    for _ in range(1000):
        step()
    gc.collect()
    assert torch.jax.memory_allocated() <= before + 1000


def test_peak_is_tracked() -> None:
    torch.jax.reset_peak_memory_stats()
    base = torch.jax.max_memory_allocated()
    x = torch.ones(500, 500, device="jax")
    y = x * 2
    del y
    assert torch.jax.max_memory_allocated() >= base + 2 * x.nbytes
