"""What is recorded of each compiled program, and what can be asked of it."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

import jaxtorch
from jaxtorch.base.jax_private import hlo_proto
from jaxtorch.insight import programs as programs_module
from jaxtorch.insight.own_lines import module_id
from jaxtorch.insight.programs import (
    Location,
    ProgramInfo,
    keep,
    kept,
    latest,
    program,
    programs,
    release,
)


def since(count: int) -> list[ProgramInfo]:
    return programs()[count:]


def line() -> int:
    """The line of the call."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_an_eager_operator_has_its_line_inputs_and_texts() -> None:
    x = torch.ones(3, 5, 7, device="jax")
    before = len(programs())
    here, _ = line(), torch.atan2(x, x)
    (info,) = since(before)
    assert (info.kind, info.part, info.signature) == ("eager", "", ("float32[3,5,7]",) * 2)
    assert info.name.startswith("atan2")
    assert info.location == Location(__file__, here)
    for text in (info.stablehlo(), info.jaxpr()):
        assert text is not None
        assert "atan2" in text
    assert info.trace_seconds > 0
    assert info.lowering_seconds > 0
    assert info.xla_seconds > 0
    assert info.seconds == info.trace_seconds + info.lowering_seconds + info.xla_seconds


def test_a_captured_function_has_a_program_for_each_part_at_the_line_that_was_traced() -> None:
    @jaxtorch.pure(name="parts")
    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().sum()

    w = torch.ones(4, 3, device="jax", requires_grad=True)
    x = torch.ones(5, 4, device="jax")
    before = len(programs())
    for _ in range(3):
        here, loss = line(), f(w, x)
        loss.backward()
    with torch.no_grad():
        f(w, x)
        f(w, x)
    infos = [p for p in since(before) if p.name == "parts"]
    assert [(p.part, p.calls, p.hits) for p in infos] == [
        ("saving", 3, 2),
        ("backward", 3, 2),
        ("", 2, 1),
    ]
    assert {p.kind for p in infos} == {"pure"}
    assert {p.source for p in infos} == {infos[0].source}
    assert {p.traces for p in infos} == {2}  # with and without gradients
    assert infos[0].location == infos[1].location == Location(__file__, here)
    assert infos[0].signature == ("float32[4,3]", "float32[5,4]")


def test_a_program_costs_what_its_matrix_product_does() -> None:
    @jaxtorch.pure(name="product")
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    f(torch.ones(8, 16, device="jax"), torch.ones(16, 32, device="jax"))
    info = program("product")
    assert info.flops == 2 * 8 * 16 * 32
    memory = info.memory()
    assert memory is not None
    assert (memory.arguments, memory.outputs, memory.alias) == (
        4 * (8 * 16 + 16 * 32),
        4 * 8 * 32,
        0,
    )
    assert memory.peak == memory.arguments + memory.outputs + memory.temporary
    assert info.code_bytes == memory.code


def test_donated_memory_is_counted_once() -> None:
    weight = torch.ones(100, device="jax")

    @jaxtorch.jit(name="write")
    def step() -> None:
        weight.add_(1)

    step()
    memory = program("write").memory()
    assert memory is not None
    assert (memory.arguments, memory.outputs, memory.alias) == (400, 400, 400)
    assert memory.peak == 400 + memory.temporary


def test_kinds() -> None:
    x = torch.ones(3, device="jax")
    before = len(programs())
    torch.compile(lambda a: a.sin() + 1, backend="jax")(x)
    jaxtorch.call_jax(jax.numpy.cos, x)
    jaxtorch.scan(lambda c, a: (c + a, c), x, x[None].expand(4, 3).clone())
    assert {p.kind for p in since(before)} >= {"compile", "call_jax", "scan"}


def test_being_listed_keeps_nothing_alive() -> None:
    @jaxtorch.pure(name="dropped")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    f(torch.ones(2, device="jax"))
    info = program("dropped")
    assert info.alive
    f.clear_cache()
    gc.collect()
    assert not info.alive
    assert (info.stablehlo(), info.hlo_proto(), info.jaxpr()) == (None, None, None)
    with pytest.raises(LookupError, match="dropped is gone"):
        keep(info)


def test_what_is_kept_outlives_its_program() -> None:
    @jaxtorch.pure(name="held")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cosh()

    f(torch.ones(2, device="jax"))
    info = program("held")
    keep(info)
    texts = info.stablehlo(), info.hlo_proto(), info.jaxpr()
    f.clear_cache()
    gc.collect()
    assert not info.alive
    assert kept(info)
    assert (info.stablehlo(), info.hlo_proto(), info.jaxpr()) == texts
    assert all(texts)
    release(info)
    assert info.jaxpr() is None


def test_a_program_is_found_by_number_and_by_name() -> None:
    @jaxtorch.pure(name="findable_by_name")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    f(torch.ones(2, device="jax"))
    info = program("findable_by_name")
    for one in (info.id, str(info.id), f"#{info.id}"):
        assert program(one).id == info.id
    with pytest.raises(LookupError, match="nearest is 'findable_by_name'"):
        program("findable_by_nam")
    with pytest.raises(LookupError, match=r"latest captured ones are.* findable_by_name$"):
        program("zzz")  # like no name, so that a suggestion would be noise
    with pytest.raises(LookupError, match="the last is #"):
        program(10**9)


def test_infos_are_plain_but_for_their_way_to_the_program() -> None:
    torch.ones(2, device="jax").erfc()
    info = programs()[-1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.name = "other"  # type: ignore[misc]
    assert "_record" not in repr(info)


def test_the_module_that_runs_gives_its_number_to_the_text(tmp_path: Path) -> None:
    f = jaxtorch.pure(lambda x: x.exp2(), name="numbered")
    f(torch.ones(2, device="jax"))
    info = program("numbered")
    proto = info.hlo_proto()
    assert proto is not None
    assert module_id(proto) == module_id(hlo_proto(info._record.handle().executable) or b"")


_TWO_SESSIONS = """
    import sys, torch, jaxtorch
    from jaxtorch.insight import events
    from jaxtorch.insight.programs import program
    events.start()
    code = "{blank}import torch\\ndef f(x):\\n    return x.sinh() * 3.25\\n"
    names = {{}}
    exec(compile(code, "{file}", "exec"), names)
    f = jaxtorch.pure(names["f"], name="shared")
    f(torch.ones(5, device="jax"))
    info = program("shared")
    from jaxtorch.base.jax_private import hlo_proto
    running = hlo_proto(info._record.handle().executable)
    print(info.persistent_hit, b"{file}" in info.hlo_proto(), b"{file}" in running)
"""


def test_a_program_of_the_persistent_cache_shows_the_lines_of_this_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled by one session, found by another whose code has another file: XLA's own text has the first's lines."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

    def session(file: str) -> str:
        code = textwrap.dedent(_TWO_SESSIONS.format(file=file, blank=""))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert session("first_cell.py") == "False True True"
    assert session("second_cell.py") == "True True False"


def test_recording_may_not_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens, whether XLA's work was found is not known, and everything else is."""
    from jaxtorch.insight import events

    was = events.recording()
    events.stop()
    try:
        torch.ones(2, 3, device="jax").acosh()
        info: Any = programs()[-1]
        assert info.persistent_hit is None
        assert info.name.startswith("acosh")
    finally:
        if was:
            events.start()


def test_who_names_no_program_means_the_latest_captured_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the engine runs itself, eager operators and the user's JAX code come after it, and are not meant."""
    f = jaxtorch.pure(lambda x: x.sin() * 1.75, name="meant")
    f(torch.ones(3, device="jax", requires_grad=True)).sum().backward()
    captured = programs()[-1].id

    known = programs()
    for kind in ("engine", "eager", "deferred", "call_jax", "jax.jit"):
        info = dataclasses.replace(known[-1], id=captured + 1, kind=kind, name=kind, part="")
        with monkeypatch.context() as patch:
            patch.setattr(programs_module, "programs", lambda info=info: [*known, info])
            found = latest()
        assert found is not None
        assert (found.name, found.part) == ("meant", "saving"), kind


def test_without_captured_code_the_users_own_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jaxtorch.pure(lambda x: x.sin() * 1.25, name="base")
    f(torch.ones(3, device="jax"))
    base = program("base")
    infos = [
        dataclasses.replace(base, id=i, kind=kind, name=kind)
        for i, kind in enumerate(("jax.jit", "eager", "engine"), 1)
    ]
    for count, expected in ((3, "jax.jit"), (2, "eager"), (1, "engine")):
        monkeypatch.setattr(programs_module, "programs", lambda n=count: infos[-n:])
        found = latest()
        assert found is not None
        assert found.name == expected
    monkeypatch.setattr(programs_module, "programs", list)
    assert latest() is None
