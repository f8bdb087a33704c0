"""`python -m benchmarks.soak_threads`: captured calls and eager work from many threads, with a watchdog.

Each thread draws one kind of call after another: a `pure` function with and without its gradient, a new `pure` function
(which is traced), a `jit` step on memory that all threads share, eager work on the same tensors, and reads of what the
steps write. Every value is compared with the CPU's, and at the end the shared sums must be exact: no update is lost.
The soak fails if a value is wrong, an exception is raised, or no call begins for a minute (then it prints the stacks of
all threads).

python -m benchmarks.soak_threads [--calls N] [--threads N] [--seed N]
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import nn

import jaxtorch

PATIENCE = 60.0  # seconds without a call of any thread before it counts as hung
Kind = Callable[["Worker"], None]


class Shared:
    """The functions that all threads call, and the tensors that they write."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.twin = nn.Linear(4, 4)
        self.twin.load_state_dict(self.model.state_dict())
        self.twin.to("jax")
        self.weight = torch.zeros(4, device="jax", requires_grad=True)
        self.count = torch.zeros((), dtype=torch.int64, device="jax")
        self.one = torch.ones(4, device="jax")
        optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.forward = jaxtorch.pure(lambda x: self.twin(x).tanh())

        @jaxtorch.jit
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            (self.weight * x).sum().backward()
            optimizer.step()
            self.count.add_(1)
            return x * 2

        self.step = step


class Worker(threading.Thread):
    """One thread: draws calls until all threads together have made enough."""

    def __init__(self, shared: Shared, tickets: Tickets, seed: int):
        super().__init__(daemon=True)
        self.shared, self.tickets = shared, tickets
        self.rng = random.Random(seed)
        self.x = torch.linspace(-1.0, 1.0, 12).reshape(3, 4) + seed / 10
        self.own = self.x.to("jax").requires_grad_()
        leaf = self.x.clone().requires_grad_()
        self.value = shared.model(leaf).tanh()
        (self.grad,) = torch.autograd.grad(self.value.sum(), leaf)
        self.steps = 0

    def run(self) -> None:
        """Make one call after another."""
        try:
            while self.tickets.take():
                self.rng.choices(list(KINDS), list(KINDS.values()))[0](self)
        except BaseException as error:
            self.tickets.failures.append(error)
            raise


class Tickets:
    """The number of calls that have begun, and the failures."""

    def __init__(self, most: int):
        self.most, self.begun, self.last = most, 0, time.monotonic()
        self.failures: list[BaseException] = []
        self._count = itertools.count(1)

    def take(self) -> bool:
        """Begin a call, if there is one left."""
        self.last = time.monotonic()
        self.begun = next(self._count)  # one call of C code, so no two threads get the same number
        return self.begun <= self.most and not self.failures


def _forward(worker: Worker) -> None:
    found = worker.shared.forward(worker.own).detach().cpu()
    torch.testing.assert_close(found, worker.value.detach())


def _gradient(worker: Worker) -> None:
    (grad,) = torch.autograd.grad(worker.shared.forward(worker.own).sum(), worker.own)
    torch.testing.assert_close(grad.cpu(), worker.grad)


def _fresh(worker: Worker) -> None:
    by = worker.rng.randint(2, 4)
    found = jaxtorch.pure(lambda x: worker.shared.twin(x).tanh() * by)(worker.own)
    torch.testing.assert_close(found.detach().cpu(), worker.value.detach() * by)


def _step(worker: Worker) -> None:
    assert worker.shared.step(worker.shared.one).tolist() == [2.0] * 4
    worker.steps += 1


def _eager(worker: Worker) -> None:
    found = worker.shared.twin(worker.own).tanh()
    assert worker.shared.one.tolist() == [1.0] * 4
    torch.testing.assert_close(found.detach().cpu(), worker.value.detach())


def _read(worker: Worker) -> None:
    weight = worker.shared.weight.detach()
    found = (weight if worker.rng.random() < 0.5 else weight * 2).tolist()
    assert found == [found[0]] * 4
    assert worker.shared.count.item() >= worker.steps


KINDS: dict[Kind, float] = {
    _forward: 30,
    _gradient: 20,
    _fresh: 0.2,
    _step: 30,
    _eager: 20,
    _read: 10,
}


def main() -> None:
    """Run the soak."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shared, tickets = Shared(), Tickets(options.calls)
    workers = [Worker(shared, tickets, options.seed + i) for i in range(options.threads)]
    started = said = time.monotonic()
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.2)
        now = time.monotonic()
        if now - tickets.last > PATIENCE:
            faulthandler.dump_traceback(all_threads=True)
            sys.exit(f"no call for {PATIENCE:.0f} s")
        if now - said > 10:
            said = now
            done = min(tickets.begun, options.calls)
            print(
                f"{done:,} of {options.calls:,} calls, {done / (now - started):,.0f} a second",
                flush=True,
            )
    if tickets.failures:
        sys.exit(f"{len(tickets.failures)} threads failed; the first: {tickets.failures[0]!r}")
    steps = sum(worker.steps for worker in workers)
    assert shared.count.item() == steps, f"{shared.count.item()} updates of {steps}"
    assert shared.weight.tolist() == [-float(steps)] * 4, (
        f"{shared.weight.tolist()} after {steps} steps"
    )
    seconds = time.monotonic() - started
    print(
        f"{options.calls:,} calls of {options.threads} threads in {seconds:.0f} s, {steps:,} steps, none lost"
    )


if __name__ == "__main__":
    main()
