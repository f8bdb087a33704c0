"""What is recorded of plain JAX, and how calls of eager operators are counted."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import pytest
import torch
from jax import monitoring

import jaxtorch
from jaxtorch.insight import events
from jaxtorch.insight.programs import Location, ProgramInfo, programs
from jaxtorch.programs import compiling


@pytest.fixture
def recording() -> Iterator[None]:
    was = events.recording()
    events.start()
    yield
    if not was:
        events.stop()


def of(name: str) -> list[ProgramInfo]:
    return [p for p in programs() if p.name == name]


@pytest.mark.usefixtures("recording")
def test_a_jit_of_the_users_is_listed_with_its_line() -> None:
    @jax.jit
    def doubled_by_jit(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2

    x, y = jnp.ones(3), jnp.ones(4)
    for value in (x, x, y):
        doubled_by_jit(value)
    first, second = of("doubled_by_jit")
    assert first.kind == "jax.jit"
    assert first.location is not None
    assert first.location.file == __file__
    assert first.source == second.source
    assert first.traces == 2
    assert first.xla_seconds > 0
    assert first.trace_seconds > 0
    assert [p.signature for p in (first, second)] == [("float32[3]",), ("float32[4]",)]
    assert (first.alive, first.flops, second.flops) == (True, 3, 4)  # the sine is no FLOP to XLA
    proto = second.hlo_proto()
    assert proto is not None
    assert b"doubled_by_jit" in proto
    jaxpr, stablehlo = first.jaxpr(), second.stablehlo()
    assert jaxpr is not None
    assert "sin" in jaxpr
    assert "f32[3]" in jaxpr
    assert stablehlo is not None
    assert "module @jit_doubled_by_jit" in stablehlo
    assert "stablehlo.sine %x : tensor<4xf32>" in stablehlo
    assert __file__ in stablehlo
    assert first.calls == second.calls == 0  # JAX tells nobody how often it is called
    del doubled_by_jit
    gc.collect()
    assert not first.alive
    assert (first.hlo_proto(), first.jaxpr(), first.stablehlo()) == (None, None, None)
    assert not of("sin"), "a part of it is no program of its own"
    assert not events.errors


@pytest.mark.usefixtures("recording")
def test_what_the_engine_asks_of_jax_is_not_the_users() -> None:
    before = len(programs())
    torch.randn(3, 11, device="jax")
    torch.manual_seed(7)
    torch.rand(13, device="jax")
    assert "jax.jit" not in {p.kind for p in programs()[before:]}


@pytest.mark.usefixtures("recording")
def test_a_listener_that_fails_breaks_no_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(events, "_compiled", broken)
    monkeypatch.setattr(events, "errors", [])
    assert float(jax.jit(lambda x: x + 41.5)(1.0)) == 42.5
    assert "broken on purpose" in str(events.errors[0])


def test_nothing_is_listened_to_after_stop() -> None:
    was = events.recording()
    events.stop()
    try:

        @jax.jit
        def unheard(x: jax.Array) -> jax.Array:
            return x * 5

        unheard(jnp.ones(3))
        assert not of("unheard")
        assert not events.recording()
    finally:
        if was:
            events.start()


def test_start_and_stop_may_come_twice_and_after_somebody_cleared_the_listeners() -> None:
    was = events.recording()
    events.start()
    events.start()
    monitoring.unregister_event_listener(events._event)
    events.stop()
    events.stop()
    assert not events.recording()
    if was:
        events.start()


@pytest.mark.usefixtures("recording")
def test_calls_of_eager_operators_are_counted_and_only_while_recording() -> None:
    x = torch.full((3, 17), 0.5, device="jax")
    torch.atanh(x)
    info = next(p for p in reversed(programs()) if p.name.startswith("atanh"))
    record = info._record
    before = record.calls
    for _ in range(10):
        torch.atanh(x)
    assert record.calls - before == 10
    events.stop()
    torch.atanh(x)
    assert record.calls - before == 10
    events.start()
    assert torch.atanh(x).sum().item() == pytest.approx(3 * 17 * 0.549306144)
    assert record.calls - before == 11


@pytest.mark.usefixtures("recording")
def test_calls_that_write_are_counted() -> None:
    x = torch.zeros(19, device="jax")
    x.add_(1)
    info = next(p for p in reversed(programs()) if p.name.startswith("add_"))
    before = info._record.calls
    for _ in range(5):
        x.add_(1)
    assert info._record.calls - before == 5
    assert x.tolist() == [6.0] * 19


@pytest.mark.usefixtures("recording")
def test_each_thread_has_its_own_names() -> None:
    def run(name: str) -> None:
        def f(x: jax.Array) -> jax.Array:
            return x * len(name)

        f.__name__ = name
        jax.jit(f)(jnp.ones(23))

    threads = [threading.Thread(target=run, args=(f"in_thread_{i}",)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [len(of(f"in_thread_{i}")) for i in range(4)] == [1] * 4


def test_a_phase_is_open_while_code_is_traced_and_never_after() -> None:
    steps = []

    @jaxtorch.pure(name="phased")
    def f(x: torch.Tensor) -> torch.Tensor:
        phase = compiling.current_phase()
        assert phase is not None
        steps.append((phase.name, phase.step))
        return x + 1

    f(torch.ones(29, device="jax"))
    assert steps == [("phased", "trace")]
    assert compiling.current_phase() is None

    @jaxtorch.pure(name="raises")
    def g(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        g(torch.ones(29, device="jax"))
    assert compiling.current_phase() is None
    assert not compiling.phases


@pytest.fixture
def slow() -> Iterator[Callable[[jax.Array], jax.Array]]:
    """A function that takes XLA a while, and that no cache has or keeps."""

    def slow_by_jit(x: jax.Array) -> jax.Array:
        for i in range(30):
            x = jnp.sort(x * (i + number))
        return x

    name = "jax_persistent_cache_min_compile_time_secs"
    number, before = random.random(), getattr(jax.config, name)
    jax.config.update(name, 1e9)
    yield jax.jit(slow_by_jit)
    jax.config.update(name, before)


@pytest.mark.usefixtures("recording")
def test_what_jax_compiles_for_the_user_is_seen_while_it_does(
    slow: Callable[[jax.Array], jax.Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, over, begun = set(), threading.Event(), []
    monkeypatch.setattr(compiling, "on_phase", lambda: begun.append(1))

    def look() -> None:
        while not over.is_set():
            phase = compiling.outermost_phase()
            if phase is not None:
                steps.add((phase.name, phase.step))
            over.wait(0.001)

    thread = threading.Thread(target=look)
    x = jnp.ones(31)
    thread.start()
    try:
        slow(x)
    finally:
        over.set()
        thread.join()
    assert ("slow_by_jit", "XLA") in steps
    assert steps <= {("slow_by_jit", "XLA"), ("slow_by_jit", "lowering")}
    assert begun  # the view was notified
    assert compiling.outermost_phase() is None


@pytest.mark.usefixtures("recording")
def test_what_is_lowered_and_not_compiled_is_not_taken_for_compiling() -> None:
    jax.jit(lambda x: x * 31.5).lower(jnp.ones(37))
    assert compiling.outermost_phase() is None
    assert not events.errors


def test_places_are_lines_of_a_file_or_a_cell() -> None:
    assert str(Location("a.py", 3)) == "a.py, line 3"
    assert str(Location("<ipython-input-2-0>", 3, 2)) == "cell [2], line 3"
