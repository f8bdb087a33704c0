"""How Ctrl-C arrives: not from C++ that may not throw, not between the halves of a context manager, but in C calls."""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from jax._src import callback, core, util
from jax._src.core import is_constant_dim
from jax._src.interpreters import pxla

from jaxtorch.device import interrupts


@pytest.fixture
def taken_over() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    interrupts.restore()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert interrupts.install()
    yield
    interrupts.restore()
    signal.signal(signal.SIGINT, before)


def press(seconds: float = 0.0) -> threading.Timer:
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    return timer


def test_recording_autograd_survives_interrupts() -> None:
    """With Python's own handler this process ends in `terminate called` after some presses."""
    code = """
    import signal, threading, time, torch
    import torch.nn.functional as F
    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    norm = torch.nn.BatchNorm1d(4).jax()
    x = torch.randn(5, 4, device="jax")
    norm(x), F.dropout(x)
    main = threading.main_thread().ident
    interrupts = 0
    while interrupts < 300:
        done = threading.Event()

        def press():
            # Again and again: JAX's callback at a garbage collection can swallow a press.
            delay = 0.001 + 0.0001 * (interrupts % 37)
            while not done.wait(delay):
                signal.pthread_kill(main, signal.SIGINT)
                delay = 0.5

        presser = threading.Thread(target=press)
        try:
            presser.start()
            while True:
                F.dropout(norm(x), 0.5)
        except KeyboardInterrupt:
            interrupts += 1
        done.set()
        presser.join()
    assert norm(x).isfinite().all()
    print("survived")
    """
    script = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "survived"


@pytest.mark.parametrize(
    "wait", [lambda: time.sleep(60), threading.Event().wait], ids=["sleep", "event"]
)
def test_waiting_in_c_is_interrupted(taken_over: None, wait: object) -> None:
    timer = press(0.05)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait()  # type: ignore[operator]  # the type is that of both parameters
    assert time.monotonic() - started < 30
    timer.join()
    time.sleep(0.3)  # one press, one exception: a second one would come here


def test_a_context_manager_is_entered_and_left_whole(taken_over: None) -> None:
    class Mode:
        on = False

        def __enter__(self) -> None:
            Mode.on = True
            sum(i for i in range(3000))
            self.half = 1

        def __exit__(self, *exc: object) -> None:
            sum(i for i in range(3000))
            Mode.on = False

    for i in range(40):
        timer = press(0.002 + i * 0.0001)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # where in it is not known
            while True:
                with Mode():
                    sum(i for i in range(3000))
        timer.join()
        assert not Mode.on


@pytest.mark.parametrize("wait", [lambda: sum(range(1000)), lambda: time.sleep(0.001)])
def test_the_traceback_has_no_frame_of_the_delivery(
    taken_over: None, wait: Callable[[], object]
) -> None:
    for _ in range(20):
        timer = press(0.005)
        with pytest.raises(KeyboardInterrupt) as caught:  # noqa: PT012  # where in it is not known
            while True:
                wait()
        timer.join()
        files = [str(entry.path) for entry in caught.traceback]
        assert not any(file.endswith("interrupts.py") and "tests" not in file for file in files)


def test_a_loop_in_a_context_manager_is_left_through_it(taken_over: None) -> None:
    """Python 3.13 has no handler for the jump at the end of such a loop."""
    for i in range(200):
        is_over = False
        timer = press(0.001 + i * 0.00001)
        try:
            with torch.no_grad():
                while not is_over:
                    is_over = time.monotonic() < 0
        except KeyboardInterrupt:
            pass
        timer.join()
        assert torch.is_grad_enabled()


def test_jax_does_not_swallow_a_press(taken_over: None) -> None:
    """`is_constant_dim` returns False for whatever it catches; lowering then fails with an AttributeError."""
    assert answers_under_presses(lambda: is_constant_dim(3)) == {True}


def answers_under_presses(call: Callable[[], object]) -> set[object]:
    """What a call returns while Ctrl-C is pressed at a hundred moments; each press must arrive."""
    answers = set()
    for i in range(100):
        timer = press(0.001 + i * 0.00001)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # where in it is not known
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                answers.add(call())
        timer.join()
    return answers


SWALLOWING = """
def f(work):
    try:
        return work()
    except:
        return None
"""


def test_no_function_of_jax_with_a_bare_except_swallows_a_press(taken_over: None) -> None:
    names: dict[str, Any] = {}
    exec(compile(SWALLOWING, os.path.join("site", "jax", "_src", "made.py"), "exec"), names)
    assert answers_under_presses(lambda: names["f"](lambda: sum(range(200)))) == {19900}


@pytest.mark.parametrize("module", [core, pxla, util, callback])
def test_a_bare_except_is_found_in_bytecode(module: types.ModuleType) -> None:
    """The source is the reference: a handler of every exception that does not raise it again."""
    found: dict[str, bool] = {}
    for function in vars(module).values():
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, types.FunctionType) and function.__module__ == module.__name__:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            handlers = [n for n in _own_nodes(tree.body[0]) if isinstance(n, ast.ExceptHandler)]
            swallows = any(
                h.type is None and not any(isinstance(n, ast.Raise) for n in ast.walk(h))
                for h in handlers
            )
            assert interrupts._has_bare_except(function.__code__) is swallows, function
            found[function.__name__] = swallows
    assert len(found) > 5


def test_the_bytecode_of_all_of_jax_can_be_read() -> None:
    """An error would end the thread that delivers Ctrl-C."""
    modules = [m for name, m in list(sys.modules.items()) if name.startswith("jax._src")]
    codes = [
        function.__code__
        for module in modules
        for function in (inspect.unwrap(f) for f in list(vars(module).values()) if callable(f))
        if isinstance(function, types.FunctionType)
    ]
    assert len(codes) > 1000
    for code in codes:
        for inner in (code, *(c for c in code.co_consts if isinstance(c, types.CodeType))):
            interrupts._has_bare_except(inner)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)


AT_START = """
import os, signal, sys, threading, torch
import jaxtorch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what runs in the background
threading.Timer(float(sys.argv[1]), lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    x = torch.zeros(3, device="jax")
    while True:
        x = (x + 1).sin()
except KeyboardInterrupt:
    print("interrupted")
print((torch.zeros(3, device="jax") + 1).tolist())
"""


@pytest.mark.parametrize("seconds", [0.05, 0.4, 0.8, 1.5])
def test_a_press_while_the_device_starts_leaves_it_whole(seconds: float) -> None:
    command = [sys.executable, "-c", AT_START, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "interrupted\n[1.0, 1.0, 1.0]\n", done.stderr


SLOW_MODULE = """
import signal, threading, time
main = threading.main_thread().ident
threading.Timer(0.0, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
deadline = time.monotonic() + 0.3
while time.monotonic() < deadline:
    pass
ended = True
"""


@pytest.mark.parametrize("by_device", [True, False])
def test_a_module_that_the_device_imports_is_imported_whole(
    taken_over: None, by_device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python leaves an interrupted `import sympy` half done: the next one fails. A user's own import ends at once."""
    name = f"slow_module_{by_device}"
    (tmp_path / f"{name}.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    file = Path(interrupts.__file__).with_name("made.py") if by_device else tmp_path / "made.py"
    exec(compile(f"def load():\n    import {name}", str(file), "exec"), names)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the press arrives in the import or in the sleep
        names["load"]()
        time.sleep(60)
    assert hasattr(sys.modules.get(name), "ended") is by_device


def test_ctrl_c_waits_for_the_end_of_an_uninterrupted_call(taken_over: None) -> None:
    ended = False

    def action() -> threading.Timer:
        nonlocal ended
        timer = press()
        interrupts.uninterrupted(lambda: None)
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            pass
        ended = True
        return timer

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # after the call
        interrupts.uninterrupted(action).join()
        time.sleep(60)
    assert ended


def test_ctrl_c_arrives_between_uninterrupted_calls_that_alone_release_the_gil(
    taken_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that delivers a press then runs only inside of the calls, where it must not arrive."""
    monkeypatch.setattr(interrupts, "PATIENCE", 3600)
    is_whole = True

    def action() -> None:
        nonlocal is_whole
        is_whole = False
        time.sleep(0.0002)
        is_whole = True

    for _ in range(20):
        timer = press(0.005)
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # where in it is not known
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                interrupts.uninterrupted(lambda: interrupts.uninterrupted(action))
        timer.join()
        assert is_whole


def test_a_long_call_of_c_code_does_not_use_up_the_patience(
    taken_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of XLA may run for minutes: its results must still be assigned."""
    monkeypatch.setattr(interrupts, "PATIENCE", 0.3)
    seconds, ended = 0.0, False

    def action() -> None:
        nonlocal seconds, ended
        timer, started = press(), time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000_000)  # does not look at signals
        seconds = time.monotonic() - started
        timer.join()
        ended = True

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # after the call
        interrupts.uninterrupted(action)
        time.sleep(60)
    assert ended
    assert seconds > 0.6


def test_a_block_that_never_ends_is_interrupted(
    taken_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.05)

    def endless() -> None:
        press().join()
        while True:
            pass

    with pytest.raises(KeyboardInterrupt):
        interrupts.uninterrupted(endless)


class _Gone:
    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def __del__(self) -> None:
        self.work()


@contextmanager
def _at_garbage_collection(work: Callable[[], None]) -> Iterator[Callable[[], object]]:
    callback = lambda phase, info: work()  # noqa: E731
    gc.callbacks.append(callback)
    try:
        yield gc.collect
    finally:
        gc.callbacks.remove(callback)


@contextmanager
def _at_a_weak_reference(work: Callable[[], None]) -> Iterator[Callable[[], object]]:
    def lose() -> None:
        target = threading.Event()
        kept = weakref.ref(target, lambda _: work())
        del target
        assert kept() is None

    yield lose


@contextmanager
def _at_a_finalizer(work: Callable[[], None]) -> Iterator[Callable[[], object]]:
    yield lambda: _Gone(work)


@pytest.mark.parametrize("place", [_at_garbage_collection, _at_a_weak_reference, _at_a_finalizer])
@pytest.mark.filterwarnings("error")  # a press that arrives is not reported as lost
def test_a_press_in_a_callback_of_c_code_arrives_after_it(taken_over: None, place: Any) -> None:
    """What such a callback raises is reported and lost."""
    pressed: list[threading.Timer] = []

    def work() -> None:
        if pressed:  # a collection calls it at its start and at its end; a second press would come after the test
            return
        pressed.append(press())
        deadline = time.monotonic() + 0.05
        while time.monotonic() < deadline:
            pass
        pressed[0].join()

    with place(work) as happen, pytest.raises(KeyboardInterrupt):  # noqa: PT012  # after the callback
        happen()
        time.sleep(60)


def test_other_errors_that_are_lost_are_reported(
    taken_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts.restore()
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    hook = sys.unraisablehook
    assert interrupts.install()
    _Gone(lambda: print(1 / 0))
    interrupts.restore()
    assert [lost.exc_type for lost in reported] == [ZeroDivisionError]
    assert sys.unraisablehook is hook


def test_python_s_handler_is_back_and_nothing_arrives_after_it(taken_over: None) -> None:
    def action() -> None:
        press().join()
        interrupts.restore()

    interrupts.uninterrupted(action)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    time.sleep(0.2)


def test_a_press_does_not_outlive_its_cell(taken_over: None) -> None:
    def action() -> None:
        press().join()
        interrupts.restore()
        assert interrupts.install()  # as the next cell does

    for _ in range(50):
        interrupts.uninterrupted(action)
    time.sleep(0.2)


def test_a_handler_of_the_user_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    handler = lambda *args: None  # noqa: E731
    try:
        signal.signal(signal.SIGINT, handler)
        assert not interrupts.install()
        interrupts.restore()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_forked_process_has_python_s_handler(taken_over: None) -> None:
    torch.ones(1, device="jax")
    child = os.fork()
    if child == 0:
        handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os._exit(2 * (not handler) + 4 * (interrupts._mark is not None))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


_PROFILED = """
import os, signal, tempfile, threading, time
import jax
from jaxtorch.device import interrupts

assert interrupts.install()
for wait in (lambda: time.sleep(60), lambda: [0 for _ in iter(int, 1)]):  # in C, in Python
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
interrupts.restore()
with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
    (jax.numpy.ones(3) + 1).block_until_ready()
print("profiled")
"""


def test_a_c_profiler_runs_after_it() -> None:
    """Python 3.11 hangs under one where the interpreter learns that an exception is gone (`SetAsyncExc(NULL)`)."""
    done = subprocess.run(
        [sys.executable, "-c", _PROFILED],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout.split() == ["interrupted", "interrupted", "profiled"], done.stderr
