"""`jaxtorch.target`: each captured program is compiled for another chip too, and the session never notices."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import jaxtorch
from jaxtorch.capture import tpu
from jaxtorch.capture.background import QUIET, _stop, background, one_line
from jaxtorch.capture.target import current_target, request, results
from jaxtorch.capture.target_program import TargetProgram
from tests.libtpu import missing, needs_libtpu

_FAKE = f"""
import os, sys, time
sys.path.insert(0, {str(Path(tpu.__file__).parent)!r})
from multiprocessing.connection import Connection
from tpu_worker import serve
MEMORY = dict.fromkeys(
    [f"{{n}}_size_in_bytes" for n in ("argument", "output", "alias", "temp", "generated_code")], 1
)
def compile_one(target, program, donated, axes, names):
    BODY
    return {{"hlo": target, "costs": {{}}, "memory": MEMORY, "device": "TPU v5 lite"}}, (b"",)
serve(Connection(int(sys.argv[1])), compile_one)
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Gives the session's compiler another script: one that runs a line of code, and then gives a result."""
    (tmp_path / "libtpu").mkdir()
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    # Its results are no programs: other tests must not see them.
    monkeypatch.setattr("jaxtorch.capture.target._results", OrderedDict())

    def replace(body: str) -> None:
        script = tmp_path / "worker.py"
        script.write_text(_FAKE.replace("BODY", body))
        tpu.shared.close()
        monkeypatch.setattr(tpu.shared, "_worker", script)

    replace("pass")
    yield replace
    jaxtorch.target(None)
    background.release()
    tpu.shared.close()  # the script would serve the tests that follow


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(3, device="jax")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def by_pure(x: torch.Tensor) -> torch.Tensor:
    return jaxtorch.pure(lambda x: x.sin() + 1)(x)


def by_pure_of_a_module(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return jaxtorch.pure(torch.nn.Linear(3, 3).to("jax"))(x)


def by_jit(x: torch.Tensor) -> torch.Tensor:
    return jaxtorch.jit(lambda x: x.sin() + 2)(x)


def by_compile(x: torch.Tensor) -> torch.Tensor:
    return torch.compile(lambda x: x.sin() + 3, backend="jax")(x)


def by_scan(x: torch.Tensor) -> torch.Tensor:
    return jaxtorch.scan(lambda c, row: (c + row.sin(), row), x.sum(), x)[0]


DOORS = [by_pure, by_pure_of_a_module, by_jit, by_compile, by_scan]


@pytest.mark.parametrize("door", DOORS)
def test_each_front_door(
    compiler: Callable[[str], None],
    x: torch.Tensor,
    door: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    background.hold()  # what a door makes is gone after it: wait while it lives
    kept: list[TargetProgram] = []
    background.on_change = kept.append
    try:
        with jaxtorch.target("v5e:1x1") as target:
            door(x)
            x.cos()  # an eager operator is not captured code
    finally:
        background.on_change = None
    assert {program.state for program in kept} == {"waiting"}
    assert len(set(kept)) == 1
    assert kept[0] in target.programs
    assert "cos" not in kept[0].name


def test_gradients_are_the_two_programs_of_the_session(
    compiler: Callable[[str], None], x: torch.Tensor
) -> None:
    f = jaxtorch.pure(lambda x: x.sin().sum())
    with jaxtorch.target("v5e:1x1") as target:
        f(x.requires_grad_()).backward()
    f(x)  # nothing is compiled any more
    found = target.wait()
    assert [(p.part, p.state) for p in found[-2:]] == [
        ("saving", "compiled"),
        ("backward", "compiled"),
    ]
    assert [p.executable.hlo for p in found[-2:] if p.executable] == ["v5e:1x1"] * 2


def test_a_compiler_that_hangs_delays_nothing(
    compiler: Callable[[str], None], x: torch.Tensor
) -> None:
    compiler("time.sleep(999)")
    target = jaxtorch.target("v5e:1x1")
    f = jaxtorch.pure(lambda x: x.sin() * 4)
    torch.testing.assert_close(f(x), x.sin() * 4)
    until(lambda: target.programs[-1].state == "compiling")
    g = jaxtorch.pure(lambda x: x.sin() * 5)
    torch.testing.assert_close(g(x), x.sin() * 5)
    stuck, waiting = target.programs[-2:]
    process = tpu.shared.process
    jaxtorch.target(None)
    assert (stuck.state, waiting.state) == ("cancelled", "cancelled")
    assert process is not None
    assert tpu.shared.process is None
    assert current_target() is None
    compiler("pass")
    again = request(stuck.record, "v5e:1x1")
    background.wait([again])
    assert again.state == "compiled"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError('two\\nlines')", "failed: ValueError: two lines"),
        ("os.abort()", "ended by SIGABRT"),
        ("os.kill(os.getpid(), 9)", "was killed"),
    ],
)
def test_an_error_is_one_line_of_the_result(
    compiler: Callable[[str], None], x: torch.Tensor, body: str, error: str
) -> None:
    compiler(f"if target == 'v5e:1x1': {body}")
    f = jaxtorch.pure(lambda x: x.sin() * 6)
    with jaxtorch.target("v5e:1x1") as target:
        torch.testing.assert_close(f(x), x.sin() * 6)
    failed = target.wait()[-1]
    assert failed.state == "failed"
    assert error in failed.error
    assert len(failed.error.splitlines()) == 1
    other = request(failed.record, "v6e:1x1")
    background.wait([other])
    assert other.state == "compiled"


def test_a_program_that_cannot_be_lowered_for_a_tpu(
    compiler: Callable[[str], None], x: torch.Tensor, capfd: pytest.CaptureFixture[str]
) -> None:
    @jaxtorch.pure
    def f(x: torch.Tensor) -> torch.Tensor:
        jaxtorch.debug.print("{}", x)  # a callback to this process
        return x.sin() * 7

    with jaxtorch.target("v5e:1x1") as target:
        torch.testing.assert_close(f(x), x.sin() * 7)
    failed = target.wait()[-1]
    assert failed.state == "failed"
    assert "calls Python while it runs" in failed.error
    assert len(failed.error.splitlines()) == 1


def test_a_program_that_is_gone_before_its_turn(
    compiler: Callable[[str], None], x: torch.Tensor
) -> None:
    background.hold()
    with jaxtorch.target("v5e:1x1") as target:
        f = jaxtorch.pure(lambda x: x.sin() * 8)
        f(x)
    program = target.programs[-1]
    del f
    gc.collect()
    background.wait([program])
    assert (program.state, program.error) == ("dropped", "its program is gone")


def test_no_lowering_begins_while_a_cell_runs(
    compiler: Callable[[str], None], x: torch.Tensor
) -> None:
    f = jaxtorch.pure(lambda x: x.sin() * 9)
    background.hold()
    with jaxtorch.target("v5e:1x1") as target:
        f(x)
    time.sleep(2 * QUIET)
    program = target.programs[-1]
    assert program.state == "waiting"
    background.release()
    until(lambda: program.ended)
    assert program.state == "compiled"


def test_the_latest_comes_first_and_the_oldest_is_dropped(
    compiler: Callable[[str], None], x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxtorch.capture.background._MOST_WAITING", 3)
    functions = [jaxtorch.pure(lambda x, n=n: x.sin() * n, name=f"f{n}") for n in range(10, 15)]
    ended: list[str] = []
    background.on_change = lambda p: ended.append(f"{p.name} {p.state}") if p.ended else None
    background.hold()
    try:
        with jaxtorch.target("v5e:1x1") as target:
            for f in functions:
                f(x)
        background.release()
        target.wait()
    finally:
        background.on_change = None
    served = ["f14 compiled", "f13 compiled", "f12 compiled"]
    assert ended == ["f10 dropped", "f11 dropped", *served]
    names = [program.name for program in target.programs]
    assert names[-5:] == ["f10", "f11", "f12", "f13", "f14"]


def test_a_waiting_thread_is_served_first_and_while_a_cell_runs(
    compiler: Callable[[str], None], x: torch.Tensor
) -> None:
    first = jaxtorch.pure(lambda x: x.sin() * 16)
    second = jaxtorch.pure(lambda x: x.sin() * 17)
    background.hold()
    with jaxtorch.target("v5e:1x1") as target:
        first(x)
        second(x)
    one, two = target.programs[-2:]
    background.wait([one])
    assert (one.state, two.state) == ("compiled", "waiting")


def test_a_target_ends_with_its_block() -> None:
    if missing():
        pytest.skip(missing())
    outer = jaxtorch.target("v5e:1x1")
    with jaxtorch.target("v6e:1x1") as inner:
        assert current_target() is inner
    assert current_target() is outer
    with pytest.raises(ZeroDivisionError), jaxtorch.target("v6e:1x1"):
        1 / 0  # noqa: B018
    assert current_target() is outer
    jaxtorch.target(None)
    assert current_target() is None
    for _ in range(2):
        with inner:  # again, where none is set
            with inner, outer, inner:
                assert current_target() is inner
            assert current_target() is inner
        assert current_target() is None


def test_a_wrong_target_changes_nothing(compiler: Callable[[str], None]) -> None:
    outer = jaxtorch.target("v5e:1x1")
    with pytest.raises(ValueError, match="v5e:4x4"):
        jaxtorch.target("v5e:3x3")
    assert current_target() is outer


def test_without_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    with pytest.raises(tpu.CompileError, match="pip install"):
        jaxtorch.target("v5e:1x1")
    assert current_target() is None


def test_threads_that_compile_at_once(compiler: Callable[[str], None], x: torch.Tensor) -> None:
    functions = [jaxtorch.pure(lambda x, n=n: x.sin() * n) for n in range(20, 28)]
    with jaxtorch.target("v5e:1x1") as target:
        threads = [threading.Thread(target=f, args=(x,)) for f in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [p.state for p in target.wait()[-8:]] == ["compiled"] * 8


# -- the end of Python, and forks -----------------------------------------------------------------------------------

_SESSION = """
import os, sys, time
from pathlib import Path
import torch, jaxtorch
from jaxtorch.capture import tpu
from jaxtorch.capture.background import background
tpu.shared._worker = Path(sys.argv[1])
target = jaxtorch.target("v5e:1x1")
x = torch.ones(3, device="jax")
layers = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(40)]).to("jax")
f = jaxtorch.pure(layers)
f(x)
"""


@pytest.mark.parametrize("state", ["lowering", "compiling"])
def test_the_end_of_python_does_not_wait(tmp_path: Path, state: str) -> None:
    (tmp_path / "libtpu").mkdir()
    script = tmp_path / "worker.py"
    script.write_text(_FAKE.replace("BODY", "time.sleep(999)"))
    rest = f"""
while target.programs[-1].state != {state!r}:
    time.sleep(0.001)
print(tpu.shared.process)
"""
    done = subprocess.run(
        [sys.executable, "-c", _SESSION + rest, str(script)],
        env={**os.environ, "JAXTORCH_LIBTPU": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""


def test_a_thread_that_python_lets_go_on_is_stopped_too(capfd: pytest.CaptureFixture[str]) -> None:
    """An exception in a callback of the garbage collector is ignored, and was reported when Python ended."""
    ready, ignored = threading.Event(), []

    class Slow:
        def __del__(self) -> None:
            ready.set()
            try:
                while True:
                    time.sleep(0.001)
            finally:
                ignored.append(True)

    def lower() -> None:
        slow = Slow()
        del slow
        with suppress(SystemExit):
            while True:
                time.sleep(0.001)

    thread = threading.Thread(target=lower, daemon=True)
    thread.start()
    ready.wait()
    hook = sys.unraisablehook
    assert thread.ident is not None
    _stop(thread, thread.ident)
    assert not thread.is_alive()
    assert ignored == [True]
    assert sys.unraisablehook is hook
    assert capfd.readouterr().err == ""


def test_a_forked_process_has_no_target(tmp_path: Path) -> None:
    (tmp_path / "libtpu").mkdir()
    script = tmp_path / "worker.py"
    script.write_text(_FAKE.replace("BODY", "time.sleep(1)"))
    rest = """
from jaxtorch.capture.target import current_target
while target.programs[-1].state != "compiling":
    time.sleep(0.001)
child = os.fork()
if child == 0:
    assert target.wait()[-1].state == "dropped"
    assert current_target() is None
    assert background._thread is None
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert target.wait()[-1].state == "compiled"
"""
    subprocess.run(
        [sys.executable, "-c", _SESSION + rest, str(script)],
        env={**os.environ, "JAXTORCH_LIBTPU": str(tmp_path)},
        timeout=120,
        check=True,
    )


# -- libtpu itself ----------------------------------------------------------------------------------------------------


@needs_libtpu
def test_a_program_that_does_not_fit_says_so_first() -> None:
    large = torch.empty(2**17, 2**16, device="meta")
    with pytest.raises(tpu.CompileError) as error:
        jaxtorch.pure(torch.cumsum).lower(large, 0, target="v5e:1x1").compile()
    line = one_line(error.value)
    assert line.startswith("does not fit: the total memory required")
    assert line.endswith("exceeds available HBM (15.75G)")


@needs_libtpu
def test_a_training_step_for_a_tpu() -> None:
    layer = torch.nn.Linear(8, 4).to("jax")
    optimizer = torch.optim.AdamW(layer.parameters())

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with jaxtorch.target("v5e:1x1") as target:
        step(torch.ones(2, 8, device="jax"))
    jaxtorch.target(None)  # what was not compiled is cancelled
    (program,) = [request(p.record, "v5e:1x1") for p in results() if p in target.programs][-1:]
    background.wait([program])
    assert program.executable is not None
    roles = {one.name: one.role for one in program.executable.inputs}
    assert roles["x"] == "argument"
    assert roles["layer.weight"] == "parameter"
    assert "optimizer state" in roles.values()
    assert 'op_name="layer.weight"' in program.executable.hlo
    assert program.executable.memory_analysis().alias_size_in_bytes > 0  # parameters are donated
    tpu.shared.close()
