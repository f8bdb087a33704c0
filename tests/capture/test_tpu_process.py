"""The compiling process: killed, stuck, cancelled, too old, without a disk; and what the session notices of it.

libtpu cannot be made to do most of this, so a script that answers as `tpu_worker.py` does takes its place. The
processes are real ones.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import jaxtorch
from jaxtorch.capture import tpu
from jaxtorch.capture.tpu import CompileError, Compiler, Request
from tests.libtpu import needs_libtpu

_HEAD = f"""
import os, signal, sys, time
HLO = (b'hlo',)
sys.path.insert(0, {str(Path(tpu.__file__).parent)!r})
from multiprocessing.connection import Connection
from tpu_worker import serve
"""
_TAIL = "\nserve(Connection(int(sys.argv[1])), compile_one)\n"
ONE = Request(b"one", "v5e:1x1", [])
TWO = Request(b"two", "v5e:1x1", [])


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Compiler]]:
    """Makes a compiler whose process runs the given body of `compile_one(target, program, donated, axes, names)`."""
    (tmp_path / "libtpu").mkdir()
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    made = []

    def make(body: str) -> Compiler:
        script = tmp_path / f"worker{len(made)}.py"
        body = textwrap.indent(textwrap.dedent(body), "    ")
        script.write_text(
            f"{_HEAD}\ndef compile_one(target, program, donated, axes, names):\n{body}{_TAIL}"
        )
        made.append(Compiler(script))
        return made[-1]

    yield make
    for compiler in made:
        compiler.close()


def figures(compiler: Compiler, request: Request) -> object:
    """What the process answers, without the serialized forms."""
    answer, serialized = compiler.compile(request)
    assert serialized.hlo == b"hlo"
    return answer


def ended(process: int) -> bool:
    """Whether a process ends within ten seconds."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_process_serves_all_programs(fake: Callable[[str], Compiler]) -> None:
    compiler = fake("return (program, os.getpid()), HLO")
    answers = [figures(compiler, one) for one in (ONE, TWO, ONE)]
    assert answers == [(p, compiler.process) for p in (b"one", b"two", b"one")]


def test_flags_of_other_backends_are_left_out(
    fake: Callable[[str], Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = "--xla_cpu_use_fusion_emitters=false --xla_dump_to=x --xla_gpu_autotune_level=0"
    monkeypatch.setenv("XLA_FLAGS", flags)
    compiler = fake("return os.environ['XLA_FLAGS'], HLO")
    assert str(figures(compiler, ONE)).split() == ["--xla_dump_to=x"]


def test_what_it_prints_is_no_answer(fake: Callable[[str], Compiler]) -> None:
    compiler = fake("print('compiled', flush=True); os.write(1, b'\\0' * 99); return program, HLO")
    assert figures(compiler, ONE) == b"one"


@pytest.mark.parametrize("size", [0, 1, 1 << 26])
def test_programs_and_answers_of_any_size(fake: Callable[[str], Compiler], size: int) -> None:
    compiler = fake("return program, HLO")
    assert figures(compiler, ONE._replace(program=b"x" * size)) == b"x" * size


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", r"was killed \(SIGKILL\): the machine may"),
        ("os.abort()", "ended by SIGABRT"),
        ("os.write(2, b'I0101 x\\nF0101 12:00 Check failed\\n'); os.abort()", "F0101 12:00 Check failed"),
        ("os._exit(3)", "ended with status 3"),
        ("os.closerange(3, 65536); time.sleep(1)", "ended"),
        ("raise ValueError('no')", "failed: ValueError: no"),
    ],
)  # fmt: skip
def test_a_failure_is_one_line_and_the_next_program_compiles(
    fake: Callable[[str], Compiler], body: str, message: str
) -> None:
    compiler = fake(f"if program == b'two': return program, HLO\n{body}")
    with pytest.raises(CompileError, match=message) as error:
        compiler.compile(ONE)
    assert str(error.value).startswith("the compiler for v5e:1x1 ")
    assert len(str(error.value).splitlines()) == 1
    assert figures(compiler, TWO) == b"two"


def test_one_that_was_killed_between_two_programs_starts_again(
    fake: Callable[[str], Compiler],
) -> None:
    compiler = fake("return program, HLO")
    compiler.compile(ONE)
    process = compiler.process
    assert process is not None
    os.kill(process, signal.SIGKILL)
    # A process of several threads is a zombie before the last one has ended, and only then its parent sees it.
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert figures(compiler, TWO) == b"two"
    assert compiler.process != process


def test_a_program_that_is_cancelled_does_not_answer_for_the_next(
    fake: Callable[[str], Compiler],
) -> None:
    compiler = fake("time.sleep(99 if program == b'one' else 0); return program, HLO")
    errors: list[BaseException] = []

    def compile_one() -> None:
        try:
            compiler.compile(ONE)
        except CompileError as error:
            errors.append(error)

    thread = threading.Thread(target=compile_one)
    thread.start()
    wait_for(lambda: compiler.process)
    compiler.cancel(TWO)  # it is not being compiled: nothing happens
    assert not errors
    wait_for(lambda: compiler._serving)
    compiler.cancel(ONE)
    thread.join()
    assert len(errors) == 1
    assert figures(compiler, TWO) == b"two"


def test_ctrl_c_while_it_compiles_ends_it(fake: Callable[[str], Compiler]) -> None:
    compiler = fake("time.sleep(99 if program == b'one' else 0); return program, HLO")
    timer = threading.Timer(
        1.0, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            compiler.compile(ONE)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert figures(compiler, TWO) == b"two"


def test_an_interrupt_of_the_kernels_group_does_not_reach_it(
    fake: Callable[[str], Compiler],
) -> None:
    compiler = fake("return program, HLO")
    compiler.compile(ONE)
    assert compiler.process is not None
    assert os.getpgid(compiler.process) != os.getpgid(0)


def test_it_needs_no_disk(
    fake: Callable[[str], Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = fake("if program == b'two': os.abort()\nreturn program, HLO")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert figures(compiler, ONE) == b"one"
    with pytest.raises(CompileError, match="ended by SIGABRT"):
        compiler.compile(TWO)


# -- the end of the session, and forks ------------------------------------------------------------------------------

_SESSION = """
import os, sys, threading, time
from pathlib import Path
from jaxtorch.capture import tpu
tpu.shared._worker = Path(sys.argv[1])
def compile():
    try:
        tpu.shared.compile(tpu.Request(b"one", "v5e:1x1", []))
    except tpu.CompileError:
        pass
threading.Thread(target=compile, daemon=True).start()
while tpu.shared._serving is None:
    time.sleep(0.01)
print(tpu.shared.process, flush=True)
"""
_STUCK = f"{_HEAD}\ndef compile_one(*args): time.sleep(999)\n{_TAIL}"


def session(tmp_path: Path, rest: str) -> subprocess.Popen[str]:
    """A Python process that has something compiled which takes for ever, and then does `rest`."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "stuck.py").write_text(_STUCK)
    return subprocess.Popen(
        [sys.executable, "-c", _SESSION + rest, str(tmp_path / "stuck.py")],
        env={**os.environ, "JAXTORCH_LIBTPU": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os._exit(0)", 0),
        ("os.kill(os.getpid(), 9)", -9),
    ],
)
def test_the_end_of_python_does_not_wait_and_leaves_no_process(
    tmp_path: Path, end: str, status: int
) -> None:
    ending = session(tmp_path, end)
    out, _ = ending.communicate(timeout=60)
    assert ending.returncode == status
    assert ended(int(out))


def test_a_forked_process_neither_uses_nor_ends_it(tmp_path: Path) -> None:
    rest = """
child = os.fork()
if child == 0:
    assert tpu.shared.process is None
    sys.exit(0)  # with the functions that run at exit
assert os.waitpid(child, 0)[1] == 0
time.sleep(0.3)
os.kill(tpu.shared.process, 0)  # it is there
print("there")
"""
    out, _ = session(tmp_path, rest).communicate(timeout=60)
    process, there = out.split()
    assert there == "there"
    assert ended(int(process))


# -- libtpu itself ---------------------------------------------------------------------------------------------------


def lowered() -> Request:
    f = jaxtorch.pure(lambda x: x + 1)
    return f.lower(torch.ones(3, device="jax"), target="v5e:1x1")._request()


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("raise ImportError('libfoo.so.1: cannot open')", "libfoo.so.1: cannot open"),
        ("", "get_library_path"),
        ("def get_library_path(): return __file__", "INTERNAL"),
    ],
)
def test_a_libtpu_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, message: str
) -> None:
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu" / "__init__.py").write_text(package)
    (tmp_path / "libtpu-0.0.7.dist-info").mkdir()
    (tmp_path / "libtpu-0.0.7.dist-info" / "METADATA").write_text("Name: libtpu\nVersion: 0.0.7\n")
    monkeypatch.setenv("JAXTORCH_LIBTPU", str(tmp_path))
    compiler = Compiler()
    with pytest.raises(CompileError, match=message) as error:
        compiler.compile(lowered())
    compiler.close()
    assert "libtpu 0.0.7 is installed; 0.0.51 was tried" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@needs_libtpu
def test_it_starts_where_a_flag_of_the_cpu_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
    compiler = Compiler()
    assert "fusion" in str(compiler.compile(lowered()))
    compiler.close()


@needs_libtpu
def test_another_process_that_holds_libtpus_lock() -> None:
    compiler = Compiler()
    with open("/tmp/libtpu_lockfile", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "fusion" in str(compiler.compile(lowered()))
    compiler.close()


@needs_libtpu
def test_libtpu_killed_while_it_compiles() -> None:
    compiler, request = Compiler(), lowered()
    first = compiler.compile(request)
    wait = threading.Timer(0.0, lambda: (wait_for(lambda: compiler._serving), kill(compiler)))
    compiler.close()
    wait.start()
    with pytest.raises(CompileError, match="was killed"):
        compiler.compile(request)
    wait.join()
    assert compiler.compile(request) == first
    compiler.close()


def kill(compiler: Compiler) -> None:
    assert compiler.process is not None
    os.kill(compiler.process, signal.SIGKILL)
