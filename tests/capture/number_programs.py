"""Programs that read and change Python numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

Tensor = torch.Tensor
CALLS = 8


class State:
    """Numbers of a program."""

    def __init__(self) -> None:
        self.n = 0
        self.scale = 1.0
        self.total = 0.0
        self.last = 0.0
        self.flag = True
        self.settings = {"lr": 0.1, "steps": 0}
        self.history = [1.0, 2.0]


def counts(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * s.n


def decays(s: State, x: Tensor) -> Tensor:
    s.scale *= 0.9
    return x * s.scale + s.scale


def warms_up(s: State, x: Tensor) -> Tensor:
    s.n += 1
    decay = min(0.99, (1 + s.n) / (10 + s.n))
    return x.lerp(x * 2, 1 - decay)


def branches(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * 2 if s.n < 4 else x / s.n


def anneals(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (0.5 * (1 + math.cos(math.pi * s.n / 10))) + math.sqrt(s.n) * math.exp(-s.n)


def corrects(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return (x / (1 - 0.9**s.n)).add(x, alpha=-s.n / 3).addcmul(x, x, value=1 / s.n)


def adds_up(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.total += s.n * 0.5
    s.last = s.total - s.n
    return x + s.total - s.last


def in_a_dictionary(s: State, x: Tensor) -> Tensor:
    s.settings["steps"] += 1
    return x * s.settings["lr"] / s.settings["steps"]


def in_a_list(s: State, x: Tensor) -> Tensor:
    s.history[-1] = s.history[-1] * 1.5
    return x * sum(s.history)


def in_a_loop(s: State, x: Tensor) -> Tensor:
    for _ in range(3):
        s.n += 1
        x = x + s.n
    return x


def in_a_function(s: State, x: Tensor) -> Tensor:
    def schedule(step: int, most: float = 5.0) -> float:
        return float(max(0.0, 1.0 - step / most))

    s.n += 1
    return x * (1 - s.n / 20)


def compares_with_tensors(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return torch.where(x > s.n, x, x - s.n) + (s.n <= x)


def starts_over(s: State, x: Tensor) -> Tensor:
    s.n += 1
    if s.n == 5:
        s.n = 0
        s.scale = 3.0
    return x * s.n + s.scale


def both_sides(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return (s.n + x) * (s.n - x) / (s.n / x) - (x - s.n)


def in_place(s: State, x: Tensor) -> Tensor:
    s.n += 1
    y = x.clone()
    y *= s.n
    y.mul_(s.n).sub_(x, alpha=s.n).div_(s.n)
    return y


def of_numpy(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (0.5 * (1 + np.cos(np.pi * s.n / 10))) + np.float64(2.0) * s.n


def is_nothing(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x if s.n == None or s.n == "auto" else x * s.n  # noqa: E711  # the case


def doubles_often(s: State, x: Tensor) -> Tensor:
    s.scale *= 1.5
    value = s.scale
    for _ in range(60):
        value = value * 0.3 + value * 0.6
    return x * value


def as_integers(s: State, x: Tensor) -> Tensor:
    s.n += 3
    return x * (s.n // 2) + s.n % 4 - abs(-s.n) + round(s.n / 7, 1) + math.floor(s.n / 2)


def of_halves(s: State, x: Tensor) -> Tensor:
    s.scale *= 0.9
    half = x.to(torch.bfloat16)
    parts = half * s.scale, half / s.scale, half + s.scale, s.scale - half
    return torch.stack(parts).to(x.dtype)


def by_bits(s: State, x: Tensor) -> Tensor:
    s.n += 1
    quotient, rest = divmod(s.n, 3)
    return x * (s.n & 3) + (s.n << 1 | 1) - (~s.n ^ 5) + quotient * rest + divmod(20, s.n)[1]


def changes_its_type(s: State, x: Tensor) -> Tensor:
    s.n += 1
    value = 2 ** (3 - s.n)
    return x * 10 if isinstance(value, int) else x * value


# A program, and how often it is traced at most: at first, with numbers that vary, and for each change of a branch.
STEADY: dict[str, tuple[Callable[[State, Tensor], Tensor], int]] = {
    f.__name__: (f, traces)
    for f, traces in (
        (counts, 2),
        (decays, 2),
        (warms_up, 2),
        (branches, 3),
        (anneals, 2),
        (corrects, 2),
        (adds_up, 3),
        (in_a_dictionary, 2),
        (in_a_list, 2),
        (in_a_loop, 2),
        (in_a_function, 2),
        (compares_with_tensors, 2),
        (starts_over, 5),
        (both_sides, 2),
        (in_place, 2),
        (of_numpy, 2),
        (doubles_often, 2),
        (is_nothing, 2),
        (as_integers, 2),
        (of_halves, 2),
        (by_bits, 2),
        (changes_its_type, 3),
    )
}


def in_a_long_loop(s: State, x: Tensor) -> Tensor:
    for _ in range(500):
        s.n += 1
    return x * s.n


def by_index(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x[s.n % 3] * x


def by_range(s: State, x: Tensor) -> Tensor:
    s.n += 1
    for i in range(s.n):
        x = x + i
    return x


def in_place_of_halves(s: State, x: Tensor) -> Tensor:
    s.scale *= 0.9
    half = x.to(torch.float16).clone()
    half += s.scale
    half *= s.scale
    return (s.scale / half).to(x.dtype)


def as_a_tensor(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * torch.tensor(s.n, device=x.device) + torch.full((3,), s.n / 2, device=x.device)


def as_a_key(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * {1: 5, 2: 7}.get(s.n, 9) * len(f"{s.n:03d}")


def by_type(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x * (s.n if type(s.n) is int else 100)


def by_isinstance(s: State, x: Tensor) -> Tensor:
    s.scale *= 2
    return x * (s.scale if isinstance(s.scale, float) and not isinstance(s.scale, Tensor) else 100)


def as_an_exponent(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x**s.n + s.n**x


def clamps(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x.clamp(-s.n, s.n) + x.clamp(min=s.n)


def of_integers(s: State, x: Tensor) -> Tensor:
    s.n += 1
    return x + torch.arange(3, device=x.device) * s.n


def raises_inside(s: State, x: Tensor) -> Tensor:
    s.n += 1
    try:
        return x * (1 / (s.n - 3))
    except ZeroDivisionError:
        return x


def raises_where_nothing_uses_it(s: State, x: Tensor) -> Tensor:
    s.n += 1
    try:
        1 / (s.n - 4)  # the result is not used
        return x * 2
    except ZeroDivisionError:
        return x


def to_a_new_object(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.settings = {"lr": 0.1, "steps": s.n}
    return x * s.settings["steps"]


def to_a_key(s: State, x: Tensor) -> Tensor:
    s.n += 1
    s.settings[s.n] = s.n * 2  # type: ignore[index]  # the case
    return x * s.settings[s.n]  # type: ignore[index]  # the case


def to_another_type(s: State, x: Tensor) -> Tensor:
    s.n = s.n + 0.5 if s.n < 3 else 7  # type: ignore[assignment]  # the case
    return x * s.n


VALUES: dict[str, Callable[[State, Tensor], Tensor]] = {
    f.__name__: f
    for f in (
        in_a_long_loop,
        by_index,
        by_range,
        in_place_of_halves,
        as_a_tensor,
        as_a_key,
        by_type,
        by_isinstance,
        as_an_exponent,
        clamps,
        of_integers,
        raises_inside,
        raises_where_nothing_uses_it,
        to_a_new_object,
        to_a_key,
        to_another_type,
    )
}
