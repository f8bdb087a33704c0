"""Programs of eager operators are bounded: the longest unused go, and are compiled again when they are called."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.dispatch.operation import forget_programs
from jaxtorch.insight.programs import program
from jaxtorch.operators.choice import operation_of
from jaxtorch.programs import program_cache, stats
from jaxtorch.storage.buffer import buffer_of

ROOM = 2_500_000  # bytes: some ten small programs


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    before = jaxtorch.config.program_memory
    forget_programs()
    jaxtorch.config.update(program_memory=ROOM)
    yield
    jaxtorch.config.update(program_memory=before)


def twice(n: int) -> torch.Tensor:
    """A program of its own for each `n`, checked."""
    x = torch.arange(n, dtype=torch.float32)
    y = x.to("jax") + x.to("jax")
    assert torch.equal(y.cpu(), x + x)
    return y


def compiled(name: str = "add.Tensor") -> int:
    return sum(r.name == name for r in stats.compiled)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(twice, id="an operator"),
        pytest.param(lambda n: torch.ones(n + 1, device="jax")[1:].exp(), id="a view"),
        pytest.param(lambda n: torch.ones(n, device="jax").mul_(3), id="in place"),
        pytest.param(lambda n: torch.linspace(0, 1, n, device="jax"), id="a factory"),
        pytest.param(lambda n: torch.aminmax(torch.ones(n, device="jax")), id="two results"),
    ],
)
def test_hundreds_of_shapes_stay_within_the_limit(call: Any) -> None:
    before = stats.evicted
    for n in range(1, 31):
        call(n)
        assert program_cache.total_bytes() <= ROOM
    assert stats.evicted > before


def test_an_evicted_program_is_compiled_again_and_right() -> None:
    for n in range(1, 21):
        twice(n)
    count = compiled()
    twice(20)
    assert compiled() == count
    twice(1)
    assert compiled() == count + 1


def test_what_is_used_stays() -> None:
    x, y = torch.ones(7, 9, device="jax"), torch.ones(7, 9, device="jax")
    count = compiled("sub.Tensor")
    for n in range(1, 41):
        twice(n)
        assert (x - y).sum().item() == 0
    assert compiled("sub.Tensor") == count + 1


def test_calls_without_a_compilation_move_nothing() -> None:
    x = torch.ones(8, device="jax")
    for n in range(1, 5):
        x[:n] + x[:n]
    ready = operation_of(torch.ops.aten.add.Tensor).ready
    x[:3] + x[:3]  # may have been set aside: comes back
    key, program = next((k, p) for k, p in ready.items() if k[3].size == (3,))
    for _ in range(2):
        for n in range(1, 5):
            x[:n] + x[:n]
        assert ready[key] is program


def test_an_evicted_program_is_gone_though_its_results_live() -> None:
    results = [twice(n) for n in range(1, 21)]
    first = next(r for r in reversed(stats.compiled) if r.avals and r.avals[0].shape == (1,))
    assert first.handle() is None  # without the garbage collector
    origin = buffer_of(results[0]).origin
    assert origin is not None
    assert origin[0].name == "add.Tensor"


def test_a_program_in_use_by_another_thread_is_not_disturbed() -> None:
    stop, wrong = threading.Event(), []

    def work(k: int) -> None:
        x = torch.full((3, k), 2.0, device="jax")
        while not stop.is_set():
            if not torch.equal((x * x).cpu(), torch.full((3, k), 4.0)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in (2, 3, 4)]
    for thread in threads:
        thread.start()
    try:
        for n in range(1, 31):
            twice(n)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert program_cache.total_bytes() <= ROOM + 2_000_000


def test_none_is_no_limit() -> None:
    jaxtorch.config.update(program_memory=None)
    before = stats.evicted
    for n in range(1, 15):
        twice(n)
    assert stats.evicted == before
    assert program_cache.total_bytes() > ROOM


def test_a_limit_below_one_program_still_computes() -> None:
    jaxtorch.config.update(program_memory=1)
    for _ in range(2):
        twice(5)
    assert program_cache.total_bytes() <= program_cache.COMPILED_BYTES * 3


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1G", True])
def test_a_wrong_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="program_memory"):
        jaxtorch.config.update(program_memory=wrong)
    assert jaxtorch.config.program_memory == ROOM


def test_a_compiled_program_does_not_keep_its_lowering() -> None:
    """The MLIR module of an addition is 1.3 MB."""
    twice(60)

    def lowerings() -> int:
        gc.collect()
        return sum(type(o).__name__ == "MeshComputation" for o in gc.get_objects())

    before = lowerings()
    twice(61)
    assert lowerings() == before
    info = program("add.Tensor")
    assert "stablehlo.add" in (info.stablehlo() or "")
    assert "add" in (info.jaxpr() or "")
    assert lowerings() == before
    handle = weakref.ref(info._record.handle())
    del info
    forget_programs()
    assert handle() is None
