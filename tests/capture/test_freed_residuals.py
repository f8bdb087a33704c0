"""What captured code saves for its backward pass is freed by it, as torch frees saved tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import jax.numpy as jnp
import pytest
import torch

import jaxtorch
from jaxtorch.storage.buffer import buffer_of

Tensor = torch.Tensor


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin().sum()


CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch": product,
    "pure": jaxtorch.pure(product),
    "compile": torch.compile(product, backend="jax"),
    "call_jax": lambda x, w: jaxtorch.call_jax(lambda a, b: jnp.sin(a * b).sum(), x, w),
}


def leaves() -> tuple[Tensor, Tensor]:
    # The result of a program: the memory of a filled tensor may be NumPy's, which XLA does not write into.
    weights = torch.ones(4, device="jax") * 1
    return torch.arange(4.0, device="jax"), weights.requires_grad_()


@pytest.mark.parametrize("name", CALLS)
def test_a_second_backward_is_torchs_error(name: str) -> None:
    loss = CALLS[name](*leaves())
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("name", CALLS)
def test_a_retained_graph_works_again(name: str) -> None:
    x, w = leaves()
    loss = CALLS[name](x, w)
    (first,) = torch.autograd.grad(loss, [w], retain_graph=True)
    (second,) = torch.autograd.grad(loss, [w], create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), [w], retain_graph=True)
    assert torch.equal(first, second)
    assert third.any()
    loss.backward()
    assert w.grad is not None
    assert torch.equal(w.grad, first)


@pytest.mark.parametrize("name", CALLS)
def test_a_kept_loss_keeps_no_input(name: str) -> None:
    x, w = leaves()
    array = weakref.ref(buffer_of(x).array)
    loss = CALLS[name](x, w)
    del x
    loss.backward()
    gc.collect()
    assert array() is None
    assert loss.item() != 0


@pytest.mark.parametrize("name", CALLS)
def test_an_optimizer_updates_parameters_without_a_copy(name: str) -> None:
    x, w = leaves()
    losses = []
    for _ in range(3):
        losses.append(CALLS[name](x, w))
        losses[-1].backward()
        memory = buffer_of(w).array.unsafe_buffer_pointer()
        with torch.no_grad():
            w.add_(w.grad, alpha=-0.1)
        assert buffer_of(w).array.unsafe_buffer_pointer() == memory  # donated
