"""Deferred execution beside immediate execution and `jaxtorch.jit`, in seconds of the processor, with its gates.

The contestants of a training step run in one process and take turns; each has a model of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.deferred.switch import switch
from jaxtorch.programs import stats

from .harness import Row
from .models import GPT
from .training import resnet18

Step = Callable[[], torch.Tensor]
WAYS = ("deferred", "immediate", "jit")


def rows() -> Iterator[Row | str]:
    """One row for each gate."""
    yield from _recording()
    for name, build, calls, to_jit, to_immediate in (
        ("MLP", _mlp, 20, 2.5, 0.5),
        ("GPT, 12 layers 32 wide", _gpt, 5, 2.5, 0.5),
        ("transformer, 4 layers 256 wide", _transformer, 3, 1.15, None),
        ("ResNet-18", _resnet, 1, 1.15, None),
    ):
        yield from _steps(name, build, calls, to_jit, to_immediate)
    yield _adversarial()


# -- recording -----------------------------------------------------------------------------------------------------


def _recording() -> Iterator[Row]:
    """Recording a call, without running it, beside a call of `jax.jit`."""
    x, w = torch.ones(8, 8, device="jax"), torch.ones(8, 8, device="jax", requires_grad=True)
    a = jnp.ones((8, 8))
    jitted = jax.jit(lambda p, q: p + q)
    cases: list[tuple[str, Callable[[], object], float]] = [
        ("recorded add", lambda: x + x, 0.7),
        ("recorded add with autograd", lambda: w + x, 0.9),
        ("recorded view", lambda: x.view(64), 0.6),
    ]
    for name, call, limit in cases:
        times: dict[str, list[float]] = {"recorded": [], "jax.jit": []}
        for _ in range(60):
            with _execution("deferred"):
                call()
                # As many calls as fit into a window: nothing is run while the clock runs.
                times["recorded"].append(_seconds(call, 500))
                torch.jax.synchronize()
            times["jax.jit"].append(_seconds(lambda: jitted(a, a), 500))
        yield Row(name, {key: min(values) for key, values in times.items()}, limit, "jax.jit")


def _seconds(call: Callable[[], object], calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - started) / calls


class _execution:
    """Sets the execution in a block; what was recorded before the block runs first."""

    def __init__(self, mode: str):
        self.mode = "deferred" if mode == "deferred" else "immediate"

    def __enter__(self) -> None:
        jaxtorch.config.update(execution=self.mode)

    def __exit__(self, *exc: object) -> None:
        jaxtorch.config.update(execution="immediate")


# -- steps ---------------------------------------------------------------------------------------------------------


def _steps(
    name: str, build: Callable[[], Step], calls: int, to_jit: float, to_immediate: float | None
) -> Iterator[Row | str]:
    steps: dict[str, Step] = {}
    compiled = 0
    for way in WAYS:
        step = steps[way] = jaxtorch.jit(build()) if way == "jit" else build()
        before = len(stats.compiled)
        with _execution(way):
            for _ in range(8):  # compile
                step().item()
                switch.policy.worker.wait()
        if way == "deferred":
            compiled = sum("deferred" in r.name for r in stats.compiled[before:])
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(15):
        for way in WAYS:
            with _execution(way):
                times[way].append(_seconds_of_steps(steps[way], calls))
    seconds = {way: min(values) for way, values in times.items()}
    yield Row(f"step, {name}", seconds, to_jit, "jit")
    if to_immediate is not None:
        yield Row("", seconds, to_immediate, "immediate")
    missed = ", missed" if compiled > 6 else ""
    yield f"{'':28} {compiled} programs of windows (goal: at most 6{missed})"


def _seconds_of_steps(step: Step, calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        step()
    # Not only for the loss: the backward pass would count as work of the contestant that comes next.
    torch.jax.synchronize()
    return (time.process_time() - started) / calls


def _training(net: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Step) -> Step:
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _mlp() -> Step:
    with torch.device("jax"):
        net = nn.Sequential(
            nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
        x, y = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer = torch.optim.AdamW(net.parameters())
    return _training(net, optimizer, lambda: F.cross_entropy(net(x), y))


def _gpt() -> Step:
    with torch.device("jax"):
        net = GPT(12, 32, 2, 8)
        x, y = torch.randint(256, (2, 8)), torch.randint(256, (2, 8))
    return _training(net, torch.optim.AdamW(net.parameters()), lambda: net(x, y))


def _transformer() -> Step:
    with torch.device("jax"):
        layer = nn.TransformerEncoderLayer(256, 8, 1024, 0.0, batch_first=True)
        net = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(256, 10))
        x, y = torch.randn(8, 128, 256), torch.randint(10, (8 * 128,))
    optimizer = torch.optim.AdamW(net.parameters())
    return _training(net, optimizer, lambda: F.cross_entropy(net(x).flatten(0, 1), y))


def _resnet() -> Step:
    with torch.device("jax"):
        net = resnet18()
        x, y = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return _training(net, optimizer, lambda: F.cross_entropy(net(x), y))


def _adversarial() -> Row:
    """Each value is read at once: deferring gains nothing."""
    x = torch.ones(8, 8, device="jax")

    def loop() -> None:
        for i in range(100):
            y = x * float(i)
            y.sum().item()

    times: dict[str, list[float]] = {"deferred": [], "immediate": []}
    for _ in range(20):
        for way, values in times.items():
            with _execution(way):
                values.append(_seconds(loop, 1))
    seconds = {way: min(values) for way, values in times.items()}
    return Row("a value read at each call", seconds, 1.1, "immediate")
