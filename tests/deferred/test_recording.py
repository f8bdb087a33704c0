"""Which calls are deferred, and what computes them."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable

import pytest
import torch

import jaxtorch

from .windows import is_pending, open_calls, tensor

Tensor = torch.Tensor
pytestmark = pytest.mark.usefixtures("deferred")


# -- what is deferred ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + 1,
        lambda x: x.sum(),
        lambda x: x.max(0)[0],
        lambda x: x[1:3] * 2,
        lambda x: x.t() @ x,
        lambda x: x.add_(1),
        lambda x: x[0].mul_(2),
        lambda x: torch.rand(3, device="jax"),
        lambda x: torch.zeros(3, 3, device="jax"),
        lambda x: torch.empty(3, 3, device="jax"),
        lambda x: torch.nn.functional.layer_norm(x, (4,)),
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
        lambda x: torch._foreach_add([x, x], 1)[1],
        lambda x: x.clone(),
        lambda x: x.double(),
    ],
)
def test_a_call_is_recorded(call: Callable[[Tensor], Tensor]) -> None:
    x = tensor()
    expected = call(x.cpu()) if call(x.cpu()).device.type == "cpu" else None
    result = call(x)
    assert is_pending(result)
    assert open_calls() >= 1
    actual = result.cpu()
    assert not is_pending(result)
    assert open_calls() == 0
    if expected is not None:
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    "look",
    [
        lambda y: y.shape,
        lambda y: y.dtype,
        lambda y: y.stride(),
        lambda y: y.device,
        lambda y: y.requires_grad,
        lambda y: y.is_contiguous(),
        lambda y: y.numel(),
        lambda y: y.view(16),
        lambda y: y[1:].t(),
        lambda y: y.detach(),
        lambda y: y.data,
        lambda y: y._version,
        lambda y: torch.empty_like(y),
        lambda y: y.untyped_storage().nbytes(),
        lambda y: gc.collect(),
    ],
)
def test_looking_at_a_tensor_computes_nothing(look: Callable[[Tensor], object]) -> None:
    y = tensor() + 1
    look(y)
    assert is_pending(y)


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y[0, 0].item(),
        lambda y: y.cpu(),
        lambda y: y.tolist(),
        lambda y: bool((y > 0).all()),
        lambda y: repr(y),
        lambda y: torch.jax.synchronize(),
        lambda y: torch.jax.memory_allocated(),
        lambda y: torch.jax.Event().record(),
        lambda y: jaxtorch.to_jax(y),
        lambda y: jaxtorch.pure(torch.sin)(y),
        lambda y: jaxtorch.jit(torch.sin)(y),
        lambda y: y.nonzero(),
        lambda y: jaxtorch.config.update(execution="immediate"),
    ],
)
def test_reading_a_value_computes_it(read: Callable[[Tensor], object]) -> None:
    y = tensor() + 1
    read(y)
    assert not is_pending(y)
    assert y.cpu().equal(torch.arange(16.0).reshape(4, 4) + 1)


def test_another_thread_reads_what_this_one_recorded() -> None:
    y = tensor() + 1
    seen: list[Tensor] = []
    thread = threading.Thread(target=lambda: seen.append((y * 2).cpu()))
    thread.start()
    thread.join()
    assert seen[0].equal((torch.arange(16.0).reshape(4, 4) + 1) * 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_refuses_a_pending_value() -> None:
    y = tensor() + 1
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            y.cpu()
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "forked process" in os.read(reader, 1000).decode()
    assert y.cpu().equal(torch.arange(16.0).reshape(4, 4) + 1)


def test_a_backward_pass_joins_the_window_of_its_forward_pass() -> None:
    w = tensor().requires_grad_()
    torch.jax.synchronize()
    loss = (w * w).sum()
    loss.backward()
    assert w.grad is not None
    assert is_pending(loss)
    assert is_pending(w.grad)
    assert w.grad.cpu().equal(2 * w.detach().cpu())
