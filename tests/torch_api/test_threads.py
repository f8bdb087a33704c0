"""Many threads at once: eager work, backward, random numbers, first use."""

import subprocess
import sys
import threading

import torch
from torch import nn

from jaxtorch.programs import rng


def run_in_threads(count, work):
    """Run `work(i)` in threads that start together; raise the first error of any."""
    barrier = threading.Barrier(count)
    errors, results = [], [None] * count

    def target(i):
        try:
            barrier.wait()
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=target, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def test_eager_work():
    def work(i):
        x = torch.full((8,), float(i), device="jax")
        for step in range(50):
            x = x * 2 - x
            x[step % 8] += 1
            x.add_(1).sub_(1)
        return x.sum().item()

    assert run_in_threads(8, work) == [8.0 * i + 50 for i in range(8)]


def test_backward():
    def work(i):
        torch.manual_seed(0)
        x = torch.linspace(0, 1, 12, device="jax").reshape(3, 4).requires_grad_()
        for _ in range(20):
            x.grad = None
            ((x @ x.t()).tanh() * (i + 1)).sum().backward()
        return x.grad.cpu()

    grads = run_in_threads(6, work)
    for i, grad in enumerate(grads):
        torch.testing.assert_close(grad, grads[0] * (i + 1))


def test_one_model_many_threads():
    model = nn.Linear(4, 4).jax()
    x = torch.ones(2, 4, device="jax")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def work(i):
        for _ in range(10):
            model(x).sum().backward()

    run_in_threads(6, work)
    assert torch.equal(model.weight.grad.cpu(), torch.full((4, 4), 120.0))


def test_reads_beside_writes_in_place():
    """A program that writes takes the memory that another thread is about to read."""
    x = torch.zeros(1024, device="jax")

    def work(i):
        for _ in range(400):
            if i == 0:
                x.add_(1)
                continue
            read = (x if i == 1 else x * 2).cpu()
            assert (read == read[0]).all()

    run_in_threads(3, work)
    assert x[0].item() == 400


def test_modes_belong_to_their_thread():
    def work(i):
        with (
            torch.set_grad_enabled(i % 2 == 0),
            torch.autocast("jax", torch.bfloat16, enabled=i % 3 == 0),
        ):
            x = torch.ones(2, 2, device="jax", requires_grad=True)
            y = x @ x
            return y.requires_grad, y.dtype

    for i, (requires_grad, dtype) in enumerate(run_in_threads(6, work)):
        assert requires_grad == (i % 2 == 0)
        assert dtype == (torch.bfloat16 if i % 3 == 0 else torch.float32)


def test_the_first_random_numbers_of_several_threads_differ(monkeypatch):
    monkeypatch.setattr(rng, "_keys", {})
    torch.rand(4, device="jax")
    for _ in range(10):
        rng._keys.clear()
        draws = run_in_threads(8, lambda i: tuple(torch.rand(4, device="jax").tolist()))
        assert len(set(draws)) == 8


def test_random_numbers_differ_between_threads():
    draws = run_in_threads(
        8, lambda i: [tuple(torch.rand(4, device="jax").tolist()) for _ in range(20)]
    )
    every = [d for thread in draws for d in thread]
    assert len(set(every)) == len(every)


def test_first_use_from_many_threads():
    program = """
import threading, torch
results = []
def work(i):
    x = torch.ones(3, device="jax", requires_grad=True)
    (x * i).sum().backward()
    results.append(x.grad.tolist() == [i] * 3)
threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert results == [True] * 8, results
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
