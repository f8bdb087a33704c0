"""`%jax config`, and the line that is shown while something is compiled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from IPython.core.error import UsageError
from jax.extend.core import Primitive
from jax.interpreters import mlir

import jaxtorch
from jaxtorch.insight.profile import record
from jaxtorch.insight.profile.events import Reader
from jaxtorch.magics import progress
from jaxtorch.programs import compiling


@pytest.fixture(autouse=True)
def options() -> Iterator[None]:
    before = {
        "fallback": jaxtorch.config.fallback,
        "matmul_precision": jaxtorch.config.matmul_precision,
        "max_traces": jaxtorch.config.max_traces,
        "program_memory": jaxtorch.config.program_memory,
    }
    yield
    jaxtorch.config.update(**before)


def test_options_are_set_for_the_session_and_shown(shell: Any, capsys: Any) -> None:
    shell.run_line_magic("jax", "config max_traces=5 fallback=silent")
    assert (jaxtorch.config.max_traces, jaxtorch.config.fallback) == (5, "silent")
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == ["max_traces=5", "fallback='silent'"]
    shell.run_line_magic("jax", "config max_traces=None")
    assert jaxtorch.config.max_traces is None
    capsys.readouterr()
    shell.run_line_magic("jax", "config")
    shown = capsys.readouterr().out
    expected = (
        "fallback='silent'",
        "max_traces=None",
        "matmul_precision=",
        "compile_cache=",
        "peak=",
        "program_memory=1073741824",
    )
    for setting in expected:
        assert setting in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("max_trace=3", "Did you mean `max_traces`"),
        ("max_traces=0", "whole number"),
        ("fallback=loud", "'warn', 'silent', 'error'"),
        ("max_traces", "OPTION=VALUE"),
        ("max_traces=7 fallback=loud", "fallback must be one of"),
        ("fallback=silent max_traces=x", "whole number"),
        ("peak=1e12", "operations, bytes"),
        ("peak=1e12,-3", "operations, bytes"),
        ("peak=fast", "operations, bytes"),
        ("program_memory=1GiB", "whole number of bytes"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(shell: Any, line: str, message: str) -> None:
    before = jaxtorch.config.max_traces, jaxtorch.config.fallback
    with pytest.raises(UsageError, match=message) as caught:
        shell.run_line_magic("jax", f"config {line}")
    assert "\n" not in str(caught.value)
    assert (jaxtorch.config.max_traces, jaxtorch.config.fallback) == before


class RecordingSink:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shown, self.gone = threading.Event(), threading.Event()

    def show(self, line: str) -> None:
        self.lines.append(line)
        self.shown.set()

    def clear(self, done: str) -> None:
        self.lines.append(done)
        self.gone.set()

    def settle(self) -> None:
        pass


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> RecordingSink:
    sink = RecordingSink()
    monkeypatch.setattr(compiling, "on_phase", progress.Progress(sink).begin)
    return sink


def test_a_long_trace_is_shown_and_then_gone(recorder: RecordingSink) -> None:
    @jaxtorch.pure(name="takes_long")
    def f(x: torch.Tensor) -> torch.Tensor:
        assert recorder.shown.wait(60)
        return x * 2

    f(torch.ones(3, device="jax"))
    assert recorder.lines[0].startswith("Compiling takes_long: tracing, ")
    assert recorder.gone.wait(60)
    assert recorder.lines[-1].startswith("Compiled takes_long")


def test_a_profile_that_is_read_long_is_shown(
    recorder: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Reader.read

    def slow(self: Reader, data: Any, start: int) -> Any:
        assert recorder.shown.wait(60)
        return read(self, data, start)

    monkeypatch.setattr(Reader, "read", slow)
    record(lambda: None)
    assert recorder.lines[0].startswith("Reading the profile, part 1: ")
    assert recorder.gone.wait(60)
    assert recorder.lines[-1].startswith("Read the profile in ")


@pytest.mark.usefixtures("shell")  # whose extension listens to JAX
def test_a_jit_of_the_users_that_takes_long_is_shown_too(recorder: RecordingSink) -> None:
    waits = Primitive("waits")
    waits.def_abstract_eval(lambda x: x)

    def lowering(context: Any, x: Any) -> Any:
        assert recorder.shown.wait(60)
        return [x]

    mlir.register_lowering(waits, lowering)

    @jax.jit
    def takes_long(x: jax.Array) -> jax.Array:
        return waits.bind(x) * 2

    assert float(takes_long(jnp.float32(4))) == 8
    assert recorder.lines[0].startswith("Compiling takes_long: lowering, ")
    assert recorder.gone.wait(60)


def test_what_is_short_shows_nothing(
    recorder: RecordingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 3600)
    torch.ones(3, 31, device="jax").logit()
    for thread in threading.enumerate():
        if thread.name == "jaxtorch-progress":
            thread.join(60)
            assert not thread.is_alive()
    assert not recorder.lines
    assert not recorder.gone.is_set()


def test_a_trace_that_is_interrupted_leaves_no_line(recorder: RecordingSink) -> None:
    @jaxtorch.pure(name="interrupted")
    def f(x: torch.Tensor) -> torch.Tensor:
        assert recorder.shown.wait(60)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        f(torch.ones(3, device="jax"))
    assert recorder.gone.wait(60)
    assert not compiling.phases


def test_a_line_goes_with_its_cell(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink()
    started = progress.Progress(sink)
    monkeypatch.setattr(progress, "_progress", started)
    monkeypatch.setattr(compiling, "on_phase", started.begin)
    monkeypatch.setattr(progress, "PAUSE", 3600)  # by itself it would stay
    shell.user_ns["shown"] = sink.shown

    shell.run_cell("""
import torch, jaxtorch

@jaxtorch.pure
def f(x):
    assert shown.wait(60)
    return x * 2

assert not f(torch.ones(3, device="jax")).requires_grad
""").raise_error()
    gone = sink.gone.is_set()
    monkeypatch.setattr(progress, "PAUSE", 0)  # let the thread end
    assert gone


def test_each_cell_is_timed_from_its_own_first_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = compiling.Phase("short", "XLA")
    monkeypatch.setattr(progress, "outermost_phase", lambda: phase)
    sink = RecordingSink()
    of_session = progress.Progress(sink)
    for now in (100.0, 101.0):
        of_session._poll(phase, now)
    assert sink.lines == ["Compiling short: XLA, 1.0 s"]
    of_session.settle()
    sink.lines.clear()
    for now in (101.1, 101.2):  # the next cell, while the thread still polls
        of_session._poll(phase, now)
    assert not sink.lines
    of_session._poll(phase, 102.0)
    assert sink.lines == ["Compiling short: XLA, 0.9 s"]


def test_a_notebooks_lines_are_one_output_of_a_cell_that_ends_as_a_sentence(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[dict[str, str], Any, bool]] = []

    def publish(data: Any, metadata: Any = None, **more: Any) -> None:
        sent.append((data, more["transient"]["display_id"], more.get("update", False)))

    monkeypatch.setattr(shell.display_pub, "publish", publish)
    monkeypatch.setattr(type(shell), "instance", classmethod(lambda cls: shell))
    monkeypatch.setattr(type(shell), "initialized", classmethod(lambda cls: True))
    sink = progress.Output()
    sink.show("Compiling <b>: XLA")
    sink.show("Compiling <b>: XLA, 1 s")
    sink.clear("Compiled <b> in 1 s.")
    sink.show("Compiling c: XLA, 1 s")
    sink.clear("Compiled 2 programs in 2 s.")
    assert [update for _, _, update in sent] == [False, True, True, True, True]
    assert len({name for _, name, _ in sent}) == 1
    assert "&lt;b&gt;" in sent[0][0]["text/html"]
    assert all(data["text/plain"] for data, _, _ in sent)
    assert sent[-1][0]["text/plain"] == "Compiled 2 programs in 2 s."
    sink.settle()
    sink.show("Compiling d: XLA")
    assert not sent[-1][2]
    assert sent[-1][1] != sent[0][1]


def test_a_session_without_a_terminal_shows_nothing(shell: Any) -> None:
    assert compiling.on_phase is None  # pytest's stderr is none


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    written = io.StringIO()
    monkeypatch.setattr(sys, "__stderr__", written)
    sink = progress.Terminal()
    sink.show("Compiling f: XLA, 1.0 s")
    sink.clear("Compiled f in 1.0 s.")
    assert written.getvalue() == "\r\x1b[2KCompiling f: XLA, 1.0 s\r\x1b[2K"
