"""Captured functions from many threads at once, beside eager work in others. The CPU says what is right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.programs import tracing
from jaxtorch.storage.buffer import buffer_of
from tests.torch_api.test_threads import run_in_threads

THREADS = 16
PATIENCE = 20.0  # seconds until a thread that waits for another gives up


def filled(module: nn.Module) -> nn.Module:
    """With parameters that are the same on every device."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(torch.sin(torch.arange(p.numel(), dtype=torch.float32) + i).reshape(p.shape))
    return module


def input_of(i: int) -> torch.Tensor:
    """The input of a thread."""
    return torch.linspace(-1.0, 1.0, 12).reshape(3, 4) + i


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_first_calls_of_one_function(capture: Callable[..., Any]) -> None:
    model = filled(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)))
    twin = filled(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))).jax()
    captured = capture(lambda x: twin(x).sum(1))

    def work(i: int) -> torch.Tensor:
        x = input_of(i).jax()
        return torch.stack([captured(x).detach() for _ in range(4)]).cpu()

    for i, found in enumerate(run_in_threads(THREADS, work)):
        expected = model(input_of(i)).sum(1).detach()
        torch.testing.assert_close(found, expected.expand(4, 3))


def test_first_calls_with_shapes_and_gradients_of_their_own() -> None:
    model, twin = filled(nn.Linear(4, 2)), filled(nn.Linear(4, 2)).jax()
    captured = jaxtorch.pure(lambda x: (twin(x) ** 2).sum())

    def work(i: int) -> torch.Tensor:
        x = input_of(i)[: 1 + i % 3].jax().requires_grad_()
        for _ in range(3):
            (grad,) = torch.autograd.grad(captured(x), x)
        return grad.cpu()

    for i, found in enumerate(run_in_threads(THREADS, work)):
        x = input_of(i)[: 1 + i % 3].requires_grad_()
        torch.testing.assert_close(found, torch.autograd.grad((model(x) ** 2).sum(), x)[0])


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_eager_work_while_another_thread_traces(capture: Callable[..., Any]) -> None:
    """The traced code waits in its middle until the other threads have used its parameters."""
    model = filled(nn.Linear(4, 4)).jax()
    expected = filled(nn.Linear(4, 4))
    traced, worked = threading.Event(), threading.Barrier(5)
    stray = torch.ones(4, device="jax")

    @capture
    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = model(x) + stray
        if not traced.is_set():
            traced.set()
            worked.wait(PATIENCE)
        return model(hidden)

    def work(i: int) -> Any:
        if i == 0:
            return function(input_of(0).jax()).detach().cpu()
        assert traced.wait(PATIENCE)
        try:
            fresh = torch.ones(3, 4, device="jax") * 2
            fresh += stray
            loss = (model(fresh) ** 2).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            return [t.tolist() for t in (*model.parameters(), stray, fresh, loss, *grads)]
        finally:
            worked.wait(PATIENCE)

    found, *others = run_in_threads(5, work)
    fresh = torch.full((3, 4), 3.0)
    loss = (expected(fresh) ** 2).sum()
    grads = torch.autograd.grad(loss, list(expected.parameters()))
    eager = (*expected.parameters(), torch.ones(4), fresh, loss, *grads)
    for other in others:
        for ours, theirs in zip(other, eager, strict=True):
            torch.testing.assert_close(torch.tensor(ours), theirs.detach())
    torch.testing.assert_close(found, expected(expected(input_of(0)) + 1).detach())


def test_a_write_while_another_thread_traces_is_not_lost() -> None:
    w = torch.zeros(4, device="jax")
    traced, written = threading.Event(), threading.Event()

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        before = w * 2
        if not traced.is_set():
            traced.set()
            assert written.wait(PATIENCE)
        return x + before

    def work(i: int) -> None:
        if i == 0:
            step(torch.ones(4, device="jax"))
            return
        assert traced.wait(PATIENCE)
        try:
            for _ in range(10):
                w.add_(1)
        finally:
            written.set()

    run_in_threads(2, work)
    assert w.tolist() == [10.0] * 4


def meanwhile(other: Callable[[], None]) -> None:
    """Run `other` in another thread, within code that is being traced in this one."""
    run_in_threads(1, lambda _: other())


@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_gradients_of_another_thread_are_its_own(capture: Callable[..., Any]) -> None:
    w = torch.ones(4, device="jax", requires_grad=True)
    gone = torch.ones(4, device="jax", requires_grad=True)
    gone.grad = torch.ones_like(gone)
    done = threading.Event()

    def train() -> None:
        (w * 3).sum().backward()
        gone.grad = None
        done.set()

    @capture
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * w + gone
        if not done.is_set():
            meanwhile(train)
        return y * 2

    x = torch.ones(4, device="jax")
    assert function(x).tolist() == [4.0] * 4
    assert w.grad is not None
    assert w.grad.tolist() == [3.0] * 4
    assert gone.grad is None
    w.grad = None
    assert function(x).tolist() == [4.0] * 4
    assert w.grad is None


def test_another_thread_that_traces_is_no_reason_to_trace_again() -> None:
    model = filled(nn.Linear(4, 2)).jax()
    forward = jaxtorch.pure(lambda x: model(x))
    x = input_of(0).jax()
    forward(x)

    @jaxtorch.pure
    def function(x: torch.Tensor) -> torch.Tensor:
        meanwhile(lambda: forward(x0))
        return model(x)

    x0 = x
    function(x)
    assert forward.cache_info().misses == 1


LOCKS = {
    "Lock": threading.Lock,
    "RLock": threading.RLock,
    "Condition": threading.Condition,
    "Semaphore": lambda: threading.Semaphore(2),
    "BoundedSemaphore": lambda: threading.BoundedSemaphore(2),
}


@pytest.mark.parametrize("kind", LOCKS)
def test_a_lock_is_no_state(kind: str) -> None:
    lock = LOCKS[kind]()

    @jaxtorch.pure
    def function(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x * 2

    x = torch.ones(2, device="jax")
    for i in range(3):
        with lock if i == 2 and "Semaphore" in kind else threading.Lock():
            assert function(x).tolist() == [2.0] * 2
    assert function.cache_info().misses == 1


def test_an_event_is_asked_at_each_call() -> None:
    event = threading.Event()

    @jaxtorch.pure
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if event.is_set() else x

    x = torch.ones(2, device="jax")
    assert function(x).tolist() == [1.0] * 2
    event.set()
    assert function(x).tolist() == [2.0] * 2


def test_reads_beside_steps_that_write() -> None:
    w = torch.zeros(1024, device="jax")
    one = torch.ones(1024, device="jax")

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        w.add_(x)
        return x * 2

    total = jaxtorch.pure(lambda x: w * x)

    def work(i: int) -> None:
        for _ in range(400):
            if i == 0:
                step(one)
                continue
            read = (w, w * 2, total(one))[i - 1].cpu()
            assert (read == read[0]).all()

    run_in_threads(4, work)
    assert w[0].item() == 400


@pytest.mark.parametrize("door", [jaxtorch.pure, jaxtorch.jit])
def test_an_array_that_is_donated_while_a_trace_reads_it_is_read_again(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = torch.ones(4, device="jax")
    written = buffer_of(w).array + 1  # by another thread's step
    real = tracing.another

    def late(array: jax.Array) -> jax.Array:
        monkeypatch.setattr(tracing, "another", real)
        buffer_of(w).array = written
        array.delete()
        return real(array)

    monkeypatch.setattr(tracing, "another", late)
    assert door(lambda x: w * x)(torch.ones(4, device="jax")).tolist() == [2.0] * 4


def test_a_donated_tensor_in_captured_code_is_one_error() -> None:
    x = torch.ones(4, device="jax")
    jaxtorch.jit(lambda x: x * 2, donate=("x",))(x)
    with pytest.raises(RuntimeError, match="was donated to a compiled function") as caught:
        jaxtorch.pure(lambda y: y + x)(torch.ones(4, device="jax"))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("first", ["traced before", "traced by all"])
def test_no_update_is_lost(first: str) -> None:
    calls = 40
    w = torch.zeros(4, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    count = torch.zeros((), dtype=torch.int64, device="jax")
    one = torch.ones(4, device="jax")

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        count.add_(1)
        return loss.detach()

    done = 2 * (first == "traced before")
    for _ in range(done):
        step(one)

    def work(i: int) -> None:
        for _ in range(calls):
            step(one)

    run_in_threads(THREADS, work)
    total = done + THREADS * calls
    assert count.item() == total
    assert w.tolist() == [-float(total)] * 4
    assert w.grad.tolist() == [1.0] * 4


def test_each_thread_trains_its_own_model_by_one_function() -> None:
    def body(model: nn.Module, x: torch.Tensor, lr: float) -> torch.Tensor:
        model.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=lr)
        return loss.detach()

    def trained(i: int, device: str, capture: Callable[..., Any]) -> torch.Tensor:
        model, x = filled(nn.Linear(4, 2)).to(device), input_of(i).to(device) / 10
        step = capture(lambda x: body(model, x, 0.05))
        return torch.stack([step(x) for _ in range(5)]).cpu()

    found = run_in_threads(THREADS, lambda i: trained(i, "jax", jaxtorch.jit))
    for i, losses in enumerate(found):
        torch.testing.assert_close(losses, trained(i, "cpu", lambda f: f))


def test_two_thousand_calls_of_every_kind() -> None:
    model, twin = filled(nn.Linear(4, 4)), filled(nn.Linear(4, 4)).jax()
    total = torch.zeros(4, device="jax")
    forward = jaxtorch.pure(lambda x: twin(x).tanh())

    @jaxtorch.jit
    def add(x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x * 2

    def work(i: int) -> int:
        x, one = input_of(i), torch.ones(4, device="jax")
        own = x.jax().requires_grad_()
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(model(leaf).tanh().sum(), leaf)
        for call in range(125):
            kind = (call + i) % 4
            if kind == 0:
                torch.testing.assert_close(forward(own).detach().cpu(), model(x).tanh().detach())
            elif kind == 1:
                (grad,) = torch.autograd.grad(forward(own).sum(), own)
                torch.testing.assert_close(grad.cpu(), expected)
            elif kind == 2:
                assert add(one).tolist() == [2.0] * 4
            else:
                y = own.detach() * 2
                y += call
                torch.testing.assert_close(y.cpu(), x * 2 + call)
        return sum((call + i) % 4 == 2 for call in range(125))

    added = sum(run_in_threads(THREADS, work))
    assert total.tolist() == [float(added)] * 4
