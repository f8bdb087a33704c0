"""Random programs that run the same in immediate and in deferred execution: `observations(seed)`.

A program is a few rounds over the same random steps, as a training loop is: new tensors, arithmetic, views, writes
through views, random numbers, gradients, optimizers, values that are read at odd places, tensors that are dropped,
errors that are caught, and threads that read. The seed alone decides what happens, never a value.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import torch

import jaxtorch

Tensor = torch.Tensor
Step = Callable[["State", random.Random], None]
STEPS: list[Step] = []
SIZE = 4  # of each dimension of the tensors at hand


class State:
    """What a program works on.

    Attributes:
        tensors: all float32 of 4 x 4, some of them views of others.
        seen: the values that were read.
        round: the number of the current round.
    """

    def __init__(self) -> None:
        torch.manual_seed(5)
        values = torch.arange(16.0).reshape(4, 4) / 16
        self.tensors: list[Tensor] = [(values + i).to("jax") for i in range(3)]
        self.net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        )
        self.net.to("jax")
        self.adam = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=1e-2, momentum=0.5)
        self.seen: list[Tensor] = []
        self.held: list[object] = []  # JAX arrays, which no write may change
        self.round = 0

    def pick(self, r: random.Random) -> Tensor:
        return r.choice(self.tensors)

    def add(self, tensor: Tensor) -> None:
        """Keep a tensor, and drop an old one if there are many."""
        self.tensors.append(tensor)
        if len(self.tensors) > 6:
            del self.tensors[0]

    def read(self, tensor: Tensor) -> None:
        self.seen.append(tensor.detach().cpu().clone())


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


@step
def arithmetic(s: State, r: random.Random) -> None:
    a, b = s.pick(r), s.pick(r)
    s.add(
        r.choice(
            [a + b, a * 0.5 - b, torch.tanh(a), a @ b * 0.1, torch.where(a > b, a, b), a.softmax(1)]
        )
    )


@step
def several_results(s: State, r: random.Random) -> None:
    values, indices = s.pick(r).max(r.randrange(2))
    s.add(values.expand(4, 4) + indices)


@step
def number_of_the_round(s: State, r: random.Random) -> None:
    s.add(s.pick(r) * (1 / (1 + s.round)) + s.round)


@step
def in_place(s: State, r: random.Random) -> None:
    a, b = s.pick(r), s.pick(r)
    r.choice(
        [
            lambda: a.add_(b, alpha=0.1),
            lambda: a.mul_(0.5),
            lambda: a.clamp_(-3, 3),
            lambda: a.copy_(b),
            lambda: a.zero_(),
            lambda: a.fill_(0.25),
            lambda: a.lerp_(b, 0.5),
            lambda: torch.add(a, b, out=a),
        ]
    )()


@step
def write_through_a_view(s: State, r: random.Random) -> None:
    a, b, i = s.pick(r), s.pick(r), r.randrange(SIZE)
    r.choice(
        [
            lambda: a[i].add_(1),
            lambda: a[:, i].copy_(b[i]),
            lambda: a.t()[i].mul_(0.5),
            lambda: a.diagonal().fill_(0.5),
            lambda: a[1:3, ::2].sub_(b[:2, :2]),
            lambda: a.view(16)[i::4].add_(b.flatten()[i]),
            lambda: a.__setitem__((slice(None), i), 0.75),
        ]
    )()


@step
def view(s: State, r: random.Random) -> None:
    a = s.pick(r)
    s.add(
        r.choice([a.t(), a.view(2, 8).view(4, 4), a.detach(), a[:], a.data, a.flatten().view(4, 4)])
    )


@step
def changing_index(s: State, r: random.Random) -> None:
    s.add(s.pick(r)[s.round % SIZE].expand(4, 4) + 1)


@step
def random_numbers(s: State, r: random.Random) -> None:
    a = s.pick(r)
    s.add(
        r.choice(
            [
                lambda: torch.rand(4, 4, device="jax"),
                lambda: torch.nn.functional.dropout(a, 0.3),
                lambda: torch.randn_like(a),
                lambda: torch.empty(4, 4, device="jax").uniform_(),
                lambda: torch.randint(5, (4, 4), device="jax").float(),
                lambda: torch.rand(4, 4, device="jax", generator=torch.Generator().manual_seed(3)),
            ]
        )()
    )


@step
def seed(s: State, r: random.Random) -> None:
    if r.random() < 0.5:
        torch.manual_seed(s.round)
    else:
        state = torch.jax.get_rng_state()
        s.read(torch.rand(2, device="jax"))
        torch.jax.set_rng_state(state)


@step
def new(s: State, r: random.Random) -> None:
    s.add(
        r.choice(
            [
                lambda: torch.zeros(4, 4, device="jax"),
                lambda: torch.full((4, 4), 0.5, device="jax"),
                lambda: torch.arange(16.0, device="jax").view(4, 4),
                lambda: torch.ones_like(s.pick(r)),
                lambda: s.pick(r).clone(),
                lambda: torch.eye(4).to("jax"),
            ]
        )()
    )


@step
def gradient(s: State, r: random.Random) -> None:
    a = s.pick(r).detach().clone().requires_grad_()
    b = (a * s.pick(r)).sin()
    if r.random() < 0.5:
        b[r.randrange(SIZE)] *= 2
    (grad,) = torch.autograd.grad(b.sum(), a)
    s.add(grad)


@step
def training(s: State, r: random.Random) -> None:
    optimizer = r.choice([s.adam, s.sgd])
    optimizer.zero_grad(set_to_none=r.random() < 0.7)
    loss = (s.net(s.pick(r).detach()) - 1).square().mean()
    loss.backward()
    if r.random() < 0.3:
        torch.nn.utils.clip_grad_norm_(s.net.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 / (1 + s.round)
    optimizer.step()
    if r.random() < 0.3:
        s.seen.append(torch.tensor(loss.item()))


@step
def read(s: State, r: random.Random) -> None:
    a = s.pick(r)
    r.choice(
        [
            lambda: s.read(a),
            lambda: s.seen.append(torch.tensor(a.sum().item())),
            lambda: s.seen.append(torch.tensor(a[r.randrange(SIZE)].tolist())),
            lambda: s.seen.append(torch.tensor(bool((a > 0).any()))),
            lambda: s.seen.append(torch.tensor(a.detach().cpu().numpy())),
        ]
    )()


@step
def look_without_reading(s: State, r: random.Random) -> None:
    a = s.pick(r)
    s.seen.append(
        torch.tensor([*a.shape, *a.stride(), a.storage_offset(), a.is_contiguous(), a.dim()])
    )


@step
def drop(s: State, r: random.Random) -> None:
    if len(s.tensors) > 2:
        del s.tensors[r.randrange(len(s.tensors))]


@step
def error(s: State, r: random.Random) -> None:
    a = s.pick(r)
    r.choice([lambda: a @ a[:2].t()[:3], lambda: a.view(5), lambda: a[7], lambda: a.add_(a[:3])])()


@step
def share_data(s: State, r: random.Random) -> None:
    a, b = s.pick(r), s.pick(r).clone()
    r.choice([lambda: b.set_(a.detach()), lambda: setattr(b, "data", a.detach().t())])()
    s.add(b)


@step
def thread(s: State, r: random.Random) -> None:
    a = s.pick(r)
    made: list[Tensor] = []
    other = threading.Thread(target=lambda: made.append((a + 1).detach().cpu()))
    other.start()
    other.join()
    s.seen += made


@step
def hold_an_array(s: State, r: random.Random) -> None:
    a = s.pick(r)
    if a.is_contiguous():
        s.held.append(jaxtorch.to_jax(a))


@step
def synchronize(s: State, r: random.Random) -> None:
    torch.jax.synchronize()


def observations(number: int, rounds: int = 5) -> list[Tensor]:
    """The values that program `number` reads, and all that it has at the end."""
    s = State()
    chosen = random.Random(number).choices(STEPS, k=random.Random(number).randrange(4, 14))
    for s.round in range(rounds):
        r = random.Random(number * 1000 + 1)  # each round makes the same choices
        for function in chosen:
            try:
                function(s, r)
            except (
                RuntimeError,
                IndexError,
            ) as raised:  # a view of a transposed tensor, an overlap
                s.seen.append(torch.tensor(len(str(raised))))
    for tensor in (*s.tensors, *s.net.parameters()):
        s.read(tensor)
    s.seen += [torch.tensor(np.asarray(array)) for array in s.held]
    s.read(torch.rand(3, device="jax"))  # the state of the generator
    return s.seen
