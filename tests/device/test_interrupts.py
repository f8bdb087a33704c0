"""How Ctrl-C arrives: not from C++ that may not throw, not between the halves of a context manager, but in C calls."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest
import torch

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


def test_later_waits_for_the_end_of_its_block(taken_over: None) -> None:
    ended = False
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # after the inner block
        with interrupts.later():
            timer = press()
            with interrupts.later():
                pass
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                pass
            ended = True
        timer.join()
        time.sleep(60)
    assert ended


def test_a_block_that_never_ends_is_interrupted(
    taken_over: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.05)
    with pytest.raises(KeyboardInterrupt), interrupts.later():  # noqa: PT012
        press().join()
        while True:
            pass


def test_python_s_handler_is_back_and_nothing_arrives_after_it(taken_over: None) -> None:
    with interrupts.later():
        press().join()
        interrupts.restore()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL
    time.sleep(0.2)


def test_a_press_does_not_outlive_its_cell(taken_over: None) -> None:
    for _ in range(50):
        with interrupts.later():
            press().join()
            interrupts.restore()
            assert interrupts.install()  # as the next cell does
    time.sleep(0.2)


def test_a_handler_of_the_user_stays() -> None:
    before = signal.getsignal(signal.SIGINT)
    own = lambda *args: None  # noqa: E731
    try:
        signal.signal(signal.SIGINT, own)
        assert not interrupts.install()
        interrupts.restore()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_forked_process_has_python_s_handler(taken_over: None) -> None:
    torch.ones(1, device="jax")
    child = os.fork()
    if child == 0:
        own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os._exit(0 if own and interrupts._mark is None else 1)
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
    """Python 3.11 hangs under one where the interpreter was told that an exception is gone (`SetAsyncExc(NULL)`)."""
    done = subprocess.run(
        [sys.executable, "-c", _PROFILED],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout.split() == ["interrupted", "interrupted", "profiled"], done.stderr
