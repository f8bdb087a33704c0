"""Delivery of Ctrl-C at moments when it is safe to raise `KeyboardInterrupt`.

Python calls SIGINT's handler wherever C code checks for signals, and the handler raises `KeyboardInterrupt` there.
While autograd records, torch asks the device guard for a stream at every node of the graph, from C++ that may not
throw. pybind11 looks up the guard's methods, and the lookup checks for signals: a `KeyboardInterrupt` there terminates
the process. So the handler must not raise, and must not even run bytecode (the next signal would raise in it). It is
therefore a C function, the `put` of a queue. A thread takes the signal out of the queue. It then asks the interpreter,
with `PyThreadState_SetAsyncExc`, to raise `KeyboardInterrupt` in the main thread at the next bytecode.

Unlike a handler, the thread can choose the moment. It does not interrupt while a context manager is entered or exited
(its state would be half set, for example a torch mode that is never removed), nor in `__del__` or a function of JAX
with a bare `except:` (which would swallow the exception), nor in an `uninterrupted` call, nor in a module that the
device imports (an interrupted `import sympy` leaves half of it behind for the rest of the session). It holds the GIL
from inspecting the main thread's frames until the request, so the main thread cannot move in between. After `PATIENCE`
seconds (`IMPORT_PATIENCE` for an import) it interrupts regardless.

A main thread that waits in C (`time.sleep`, a socket, `input()`) runs no bytecode. If it has not moved for a while,
it receives a second signal: SIGURG, which is rarely used and ignored by default. Its handler is a Python function that
does nothing: the requested exception is raised at its first bytecode and ends the wait.

Between the request and the next bytecode, C code may start a callback whose errors are only reported: JAX's garbage
collection callback, `__del__`, or that of a weak reference. The exception would be lost there. Python passes such
exceptions to `sys.unraisablehook`; while jaxtorch handles SIGINT it also owns this hook, which repeats the request.

A request is never withdrawn. `PyThreadState_SetAsyncExc` with a null exception makes the interpreter check for an
exception at every bytecode permanently; under a C profiling function (such as JAX's profiler) Python 3.11 then hangs.

https://docs.python.org/3/c-api/init.html#c.PyThreadState_SetAsyncExc
"""

from __future__ import annotations

import ctypes
import dis
import functools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

_T = TypeVar("_T")

PATIENCE = 2.0  # seconds
IMPORT_PATIENCE = 20.0  # seconds
_WAIT_IN_C = 0.1  # seconds without a bytecode, after which the main thread counts as waiting in C
_POLL_INTERVAL = 0.0005  # seconds between two looks at the main thread

_NOT_IN = frozenset({"__enter__", "__exit__", "__del__"})  # functions that are not interrupted

_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"  # in the names of JAX's files
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # how our files' names start
_IMPORT = "_find_and_load"  # importlib's function for a module that is not imported yet

_INTERRUPT = ctypes.py_object(KeyboardInterrupt)

_presses: queue.SimpleQueue[object] = queue.SimpleQueue()
_handler: Any = None  # puts a mark into `_presses`
_mark: object = (
    None  # identifies the presses that count: a press in one cell must not interrupt the next
)
_lock = threading.Lock()
_report: Callable[[Any], Any] = sys.__unraisablehook__  # what reported lost exceptions before
_thread: threading.Thread | None = None


def install() -> bool:
    """Take over SIGINT, only from Python's own handler and in the main thread. Returns whether it did."""
    global _handler, _mark, _report, _thread
    if (
        not hasattr(signal, "pthread_kill")
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        or signal.getsignal(signal.SIGURG) not in (signal.SIG_DFL, _arrive)
    ):
        return False
    if _thread is None:
        _thread = threading.Thread(target=_deliver, name="jaxtorch-interrupts", daemon=True)
        _thread.start()
        for _ in range(
            2
        ):  # a KeyboardInterrupt requested before the fork may end the first before its `try`
            os.register_at_fork(after_in_child=_in_child)
    signal.signal(signal.SIGURG, _arrive)
    _mark = object()
    # A partial is C code too. The signal's number and frame become arguments that `put` ignores.
    _handler = functools.partial(_presses.put, _mark)
    signal.signal(signal.SIGINT, _handler)
    if sys.unraisablehook is not _press_again:
        _report, sys.unraisablehook = sys.unraisablehook, _press_again
    return True


def restore() -> None:
    """Return SIGINT to Python's own handler; a signal that is not yet delivered is dropped."""
    global _mark
    if _mark is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is _handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    while True:
        try:
            with _lock:
                _mark = None
            _arrive()
            break
        except KeyboardInterrupt:  # requested before, but arrives too late
            continue
    signal.signal(signal.SIGURG, signal.SIG_DFL)
    _give_hook_back()


def _give_hook_back() -> None:
    if sys.unraisablehook is _press_again:
        sys.unraisablehook = _report


def _press_again(unraisable: Any) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _presses.put(_mark)
    else:
        _report(unraisable)


def _arrive(*_signal: object) -> None:
    """Run bytecodes at which the interpreter raises the requested exception: a call, and a backward jump."""
    for _ in range(2):
        pass


def uninterrupted(action: Callable[[], _T]) -> _T:
    """Call `action` in the main thread; Ctrl-C waits for its end (or for `PATIENCE` seconds).

    It is for a few lines that must run together. Calls may be nested. It is a call and not a `with` block, so that its
    frame is the only state, and an exception cannot leave anything half set.
    """
    return action()


def held_back(action: Callable[[], _T]) -> _T:
    """Call `action`; Ctrl-C waits for its end, however long it takes. It is for what must not be left half done."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return action()
    presses: queue.SimpleQueue[None] = queue.SimpleQueue()
    signal.signal(signal.SIGINT, functools.partial(presses.put, None))
    try:
        return action()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not presses.empty():
            signal.raise_signal(signal.SIGINT)


def _in_child() -> None:
    """Restore SIGINT in a forked process, which has inherited the handler but not the thread."""
    try:
        _give_back_in_child()
    except KeyboardInterrupt:  # requested before the fork; it could only be reported here
        _give_back_in_child()


def _give_back_in_child() -> None:
    global _mark, _thread, _lock
    if _mark is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGURG, signal.SIG_DFL)
    _give_hook_back()
    _mark, _thread, _lock = None, None, threading.Lock()


def _deliver() -> None:
    while True:
        mark = _presses.get()
        position = _request_interrupt(mark)
        if position is not None and _is_unchanged(position):
            _raise_in_c(mark)
        del position  # the frame keeps its variables alive


def _request_interrupt(mark: object) -> tuple[FrameType | None, int] | None:
    """Returns the main thread's position at the request; None if SIGINT has been given back since the press."""
    pressed = time.monotonic()
    while True:
        _learn(_main_frame())
        with _lock:
            if mark is not _mark:
                return None
            if time.monotonic() >= pressed + _patience(_main_frame()):
                position = _position()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(_main()), _INTERRUPT)
                return position
        time.sleep(_POLL_INTERVAL)


def _is_unchanged(position: tuple[FrameType | None, int]) -> bool:
    for _ in range(10):
        time.sleep(_WAIT_IN_C / 10)
        if _position() != position:
            return False
    return True


def _patience(frame: FrameType | None) -> float:
    """How many seconds after the press the main thread may be interrupted in a frame; 0 means at once."""
    patience = 0.0
    imports = False
    while frame is not None:
        code = frame.f_code
        whole = code is uninterrupted.__code__ or code.co_name in _NOT_IN
        if whole or (_is_of_jax(code) and _swallows.get(code, True)):
            patience = PATIENCE
        elif code.co_name == _IMPORT:
            imports = True
        elif imports and code.co_filename.startswith(_OURS):
            return IMPORT_PATIENCE
        frame = frame.f_back
    return patience


# -- functions of JAX that go on after any exception ---------------------------------------------------------------

# Code of JAX -> whether it has a bare `except:`. A constant shape would count as symbolic in `is_constant_dim`, and
# `get_out_shardings_from_executable` would ignore Ctrl-C.
_swallows: dict[CodeType, bool] = {}


def _learn(frame: FrameType | None) -> None:
    """Look at the code of the frames, before `_patience`, which must not take long."""
    while frame is not None:
        code = frame.f_code
        if code not in _swallows and _is_of_jax(code):
            _swallows[code] = _has_bare_except(code)
        frame = frame.f_back


def _is_of_jax(code: CodeType) -> bool:
    return _JAX in code.co_filename


def _has_bare_except(code: CodeType) -> bool:
    """Whether a function catches every exception and does not raise it again.

    Handlers begin at PUSH_EXC_INFO, and where a comparison with the exceptions of an earlier one jumps to. One that
    names no exceptions drops the exception at once, and ends with POP_EXCEPT if it raises nothing.
    https://docs.python.org/3/library/dis.html#opcode-PUSH_EXC_INFO
    """
    instructions = list(dis.get_instructions(code))
    index = {instruction.offset: i for i, instruction in enumerate(instructions)}
    for i, instruction in enumerate(instructions[:-1]):
        start = None
        if instruction.opname == "PUSH_EXC_INFO":
            start = i + 1
        elif instruction.opname == "CHECK_EXC_MATCH":
            jump = next(other for other in instructions[i:] if "JUMP" in other.opname)
            start = index[jump.argval]
        if start is not None and instructions[start].opname == "POP_TOP":
            names = (other.opname for other in instructions[start:])
            ends = (name for name in names if name in ("POP_EXCEPT", "RAISE_VARARGS"))
            if next(ends, None) == "POP_EXCEPT":
                return True
    return False


def _raise_in_c(mark: object) -> None:
    with _lock:
        if mark is _mark:
            signal.pthread_kill(_main(), signal.SIGURG)


def _main() -> int:
    ident = threading.main_thread().ident
    assert ident is not None
    return ident


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(_main())


def _position() -> tuple[FrameType | None, int]:
    """The main thread's position: its frame and instruction.

    Not the frame's `id`, which the frame of the next call may have too.
    """
    frame = _main_frame()
    return frame, frame.f_lasti if frame is not None else 0
