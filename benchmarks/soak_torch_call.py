"""A million calls from JAX into torch, mixed, from several threads, under a watchdog.

Each thread draws one kind of call after another (eager, `jit`, `grad`, `vmap`, an exception, a function that writes to
its argument, garbage in a cycle) and compares every result with numpy. At random, a thread collects garbage, or wraps
and compiles a new function. The soak fails if

* a value is wrong, or an exception is not the one that was raised,
* a thread's call does not end for a minute (then it prints the stacks of all threads),
* memory or the number of live arrays grows after the first tenth.

python -m benchmarks.soak_torch_call [--calls N] [--threads N] [--seed N]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import torch

import jaxtorch

PATIENCE = 60.0  # seconds without a call before it counts as hung
GROWTH = 64 * 2**20  # bytes of freed memory that the allocators may keep
Values = tuple[np.ndarray, np.ndarray]
Kind = Callable[[Values], None]


class Refused(ValueError):
    """The exception that the functions raise on purpose."""


def _plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + 1


def _loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * x * y).sum()


def _writing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y)
    return x


def _cycle(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Make garbage that stays until the garbage collector frees it after the call. So it holds a copy of `x`."""
    knot: list[Any] = [x.clone()]
    knot.append(knot)
    return knot[0] + y


def _raising(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if type(x) is torch.Tensor:  # not in the run without values that finds the shape of the result
        raise Refused(f"on purpose: {x[0, 0].item()}")
    return x + y


def _checked(function: Callable[..., Any], expected: Callable[..., Any]) -> Kind:
    def check(values: Values) -> None:
        found = function(*map(jnp.asarray, values))
        np.testing.assert_allclose(found, expected(*values), rtol=1e-5, atol=1e-5)

    return check


def _refused(function: Callable[..., Any]) -> Kind:
    def check(values: Values) -> None:
        told = ""
        try:
            jax.block_until_ready(function(*map(jnp.asarray, values)))
        except Exception as error:
            told = str(error)
        assert f"on purpose: {values[0][0, 0].item()}\n" in f"{told}\n", (
            told or "an exception got lost"
        )

    return check


def _fresh(values: Values) -> None:
    """Wrap, compile and drop a new function."""
    number = random.randrange(10**6)
    function = jax.jit(jaxtorch.torch2jax(lambda x, y: x + y + number % 7))
    np.testing.assert_allclose(function(*values), values[0] + values[1] + number % 7, rtol=1e-5)
    del function
    if number % 50 == 0:
        jax.clear_caches()
    gc.collect()


def _product(x: Any, y: Any) -> Any:
    return x * y + 1


def _slope(x: Any, y: Any) -> Any:
    return 2 * x * y


def _batched(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: function(x[None].repeat(3, 0), y[None].repeat(3, 0))


def _thrice(expected: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: np.stack(3 * [expected(x, y)])


def kinds() -> dict[str, Kind]:
    """A check for each kind of call."""
    wrap = jaxtorch.torch2jax
    plain, loss, writing, cycle, raising = map(wrap, (_plain, _loss, _writing, _cycle, _raising))
    return {
        "eager": _checked(plain, _product),
        "jit": _checked(jax.jit(plain), _product),
        "jit of two": _checked(
            jax.jit(lambda x, y: plain(plain(x, y), y)), lambda x, y: (x * y + 1) * y + 1
        ),
        "grad": _checked(jax.grad(loss), _slope),
        "jit of grad": _checked(jax.jit(jax.grad(loss)), _slope),
        "vmap": _checked(_batched(jax.vmap(plain)), _thrice(_product)),
        "jit of vmap of grad": _checked(
            jax.jit(_batched(jax.vmap(jax.grad(loss)))), _thrice(_slope)
        ),
        "scan": _checked(
            jax.jit(lambda x, y: jax.lax.scan(lambda c, _: (plain(c, y), None), x, length=3)[0]),
            lambda x, y: ((x * y + 1) * y + 1) * y + 1,
        ),
        "writing": _checked(jax.jit(writing), np.multiply),
        "cycle": _checked(jax.jit(cycle), np.add),
        "raising": _refused(raising),
        "jit of raising": _refused(jax.jit(raising)),
    }


class Soak:
    """The threads, the counts of their calls, and the watchdog."""

    def __init__(self, calls: int, threads: int, seed: int):
        self.calls, self.seed = calls, seed
        self.done: list[Counter[str]] = [Counter() for _ in range(threads)]
        self.error: BaseException | None = None
        self.kinds = kinds()
        self.process = psutil.Process()

    @property
    def total(self) -> int:
        return sum(counter.total() for counter in self.done)

    def work(self, index: int) -> None:
        """Make the calls of one thread."""
        draw = random.Random(f"{self.seed} {index}")
        numbers = np.random.default_rng([self.seed, index])
        names = list(self.kinds)
        mine = self.done[index]
        try:
            while mine.total() < self.calls // len(self.done) and self.error is None:
                n = draw.choice((1, 8, 64))
                values = tuple(numbers.uniform(-1, 1, (n, 4)).astype(np.float32) for _ in range(2))
                name = draw.choice(names)
                self.kinds[name](values)  # type: ignore[arg-type]  # mypy does not know that the tuple has two items
                mine[name] += 1
                if draw.random() < 0.001:
                    gc.collect()
                if draw.random() < 0.0001:
                    _fresh(values)  # type: ignore[arg-type]  # as above
        except BaseException as error:
            self.error = error

    def measure(self) -> tuple[int, int]:
        """Bytes of memory, and the number of live arrays, after a garbage collection."""
        gc.collect()
        return self.process.memory_info().rss, len(jax.live_arrays())

    def run(self) -> None:
        """Start the threads, watch them and report. Raises the first error of a thread."""
        threads = [
            threading.Thread(target=self.work, args=(i,), daemon=True, name=f"soak {i}")
            for i in range(len(self.done))
        ]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        base: tuple[int, int] | None = None
        seen = [(-1, started)] * len(threads)
        while any(thread.is_alive() for thread in threads):
            time.sleep(1.0)
            now = time.monotonic()
            for i, thread in enumerate(threads):
                count = self.done[i].total()
                if count != seen[i][0] or not thread.is_alive():
                    seen[i] = count, now
            if now - min(since for _, since in seen) > PATIENCE:
                _hung(
                    f"a thread has not ended a call in {PATIENCE:.0f} s, after {self.total} calls of all"
                )
            rss, arrays = self.measure()
            if base is None and self.total >= self.calls // 10:
                base = rss, arrays
            memory = f"{rss / 2**20:.0f} MB, {arrays} arrays"
            print(f"\r{self.total} calls, {now - started:.0f} s, {memory}   ", end="", flush=True)
        print()
        if self.error is not None:
            raise self.error
        self.judge(base or self.measure())

    def judge(self, base: tuple[int, int]) -> None:
        """Raise if something grew since `base` was measured."""
        rss, arrays = self.measure()
        assert arrays <= base[1] + 32, f"live arrays grew from {base[1]} to {arrays}"
        assert rss <= base[0] + GROWTH, f"memory grew from {base[0] >> 20} to {rss >> 20} MB"
        counts = sum(self.done, Counter())
        assert all(counts[name] for name in self.kinds), counts
        print(", ".join(f"{counts[name]} {name}" for name in self.kinds))


def _hung(what: str) -> NoReturn:
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    print(f"hung: {what}", file=sys.stderr, flush=True)
    os._exit(2)


def run(scale: float = 1.0) -> None:
    """Run the soak. `scale` is the fraction of the million calls."""
    Soak(int(10**6 * scale), 4, random.randrange(10**6)).run()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10**6)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    print("seed", arguments.seed)
    faulthandler.enable()
    Soak(arguments.calls, arguments.threads, arguments.seed).run()


if __name__ == "__main__":
    main()
