"""Delivery of Ctrl-C at moments when it is safe to raise `KeyboardInterrupt`.

Python calls SIGINT's handler wherever C code checks for signals, and the handler raises `KeyboardInterrupt` there.
While autograd records, torch asks the device guard for a stream at every node of the graph, from C++ that may not
throw. pybind11 looks up the guard's methods, and the lookup checks for signals: a `KeyboardInterrupt` there terminates
the process. So the handler must not raise, and must not even run bytecode (the next signal would raise in it). It is
therefore a C function, the `put` of a queue. A thread takes the signal out of the queue and asks the interpreter for a
pending call: a C function that the main thread calls between two bytecodes, and nowhere else. The function is
`PyObject_IsTrue`, with a `_Press` as its argument. The lookup of the press's `__bool__` runs our code. It looks at the
frames of the main thread, and returns either `bool` or a C function that raises `KeyboardInterrupt`. So the traceback
has no frame of ours.

A press waits while a context manager is entered or exited (its state would be half set, for example a torch mode that
is never removed), in `__del__`, in a function of JAX with a bare `except:` (which would swallow the exception), at a
jump that would bypass a `with` block (`_jumps_without_handler`), in an `uninterrupted` call, and in a module that the
device imports (an interrupted `import sympy` leaves half of it behind for the rest of the session). The thread then
asks again a moment later. `PATIENCE` seconds (`IMPORT_PATIENCE` for an import) after the first time a press interrupts
regardless. The press itself does not start this clock: a program of XLA may run for longer, and the main thread can
only be asked when it ends.

The thread asks only when it has the GIL. A fast loop around an `uninterrupted` call may release the GIL nowhere but in
that call, so that every answer would be "not now". The main thread therefore asks itself at the end of the call.

A main thread that waits in C (`time.sleep`, a socket, `input()`) runs no bytecode. If it has not moved for a while,
it receives a second signal: SIGURG, which is rarely used and ignored by default. Its handler is a Python function that
does nothing: the pending call comes at its first bytecode, and the exception ends the wait.

A callback of C whose errors are only reported, such as that of a weak reference, loses the exception. Python passes
such exceptions to `sys.unraisablehook`; while jaxtorch handles SIGINT it also owns this hook, which repeats the press.

`PyThreadState_SetAsyncExc` would raise the exception from the thread itself. Python 3.13 raises it one check later than
the bytecode at which the main thread waits for the GIL, so it came in the first line of an `__exit__`.

https://docs.python.org/3/c-api/init.html#c.Py_AddPendingCall
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

from ..native.loading import INTERRUPTS

_T = TypeVar("_T")

PATIENCE = 2.0  # seconds
IMPORT_PATIENCE = 20.0  # seconds
_WAIT_IN_C = 0.1  # seconds without a bytecode, after which the main thread counts as waiting in C
_POLL_INTERVAL = 0.0005  # seconds between two looks at the main thread

_NOT_IN = frozenset({"__enter__", "__exit__", "__del__"})  # functions that are not interrupted

_JAX = f"{os.sep}jax{os.sep}_src{os.sep}"  # in the names of JAX's files
_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # how our files' names start
_IMPORT = "_find_and_load"  # importlib's function for a module that is not imported yet

_add_pending_call = ctypes.pythonapi.Py_AddPendingCall
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_raise = functools.partial(signal.default_int_handler, signal.SIGINT, None)

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
        _thread = threading.Thread(target=_deliver, name=INTERRUPTS, daemon=True)
        _thread.start()
        for _ in range(2):  # a press before the fork may end the first before its `try`
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
    if _mark is not None and threading.current_thread() is threading.main_thread():
        uninterrupted(_restore)


def _restore() -> None:
    global _mark
    if signal.getsignal(signal.SIGINT) is _handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with _lock:
        _mark = None
    _arrive()  # for a SIGURG that has come already: without a handler, Python would report it
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
    """Run bytecodes at which the interpreter makes pending calls: a call, and a backward jump."""
    for _ in range(2):
        pass


def uninterrupted(action: Callable[[], _T]) -> _T:
    """Call `action` in the main thread; Ctrl-C waits for its end (or for `PATIENCE` seconds).

    It is for a few lines that must run together. Calls may be nested. It is a call and not a `with` block, so that its
    frame is the only state, and an exception cannot leave anything half set.
    """
    result = action()
    if _press is not None and threading.current_thread() is threading.main_thread():
        _ask_after_the_caller()
    return result


def _ask_after_the_caller() -> None:
    """Ask for a pending call that the main thread makes after the caller has returned.

    Python makes one at once, in this frame, and `_TruthValue` then asks again. After 32 in a row it goes on, and makes
    the next one at a call or a loop: not where a function returns.
    """
    _add_pending_call(_IS_TRUE, _question)


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
    except KeyboardInterrupt:  # pressed before the fork; it could only be reported here
        _give_back_in_child()


def _give_back_in_child() -> None:
    global _mark, _press, _thread, _lock
    _press = None
    if _mark is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGURG, signal.SIG_DFL)
    _give_hook_back()
    _mark, _thread, _lock = None, None, threading.Lock()


class _TruthValue:
    """What the interpreter calls for the truth value of a question: `__bool__`, looked up at each pending call."""

    def __get__(self, question: object, cls: type) -> Callable[[], object]:
        press, frame = _press, sys._getframe(1)
        if question is None or press is None:
            return bool
        if press.is_due(frame):
            return _raise
        if frame.f_code is _ask_after_the_caller.__code__:
            _add_pending_call(_IS_TRUE, _question)
        return bool


class _Question:
    """What is asked of the main thread: whether the press that waits interrupts it now."""

    __bool__ = _TruthValue()


# One for all presses: the interpreter keeps no reference to what it is asked to call.
_question = ctypes.py_object(_Question())


class _Press:
    """One press, until it has interrupted the main thread.

    Attributes:
        is_answered: whether the main thread has made a pending call, to its end, since this was set to False.
        is_over: whether it has interrupted, or SIGINT has been given back since.
    """

    def __init__(self, mark: object):
        self.mark = mark
        self.is_answered = self.is_over = False
        self._first_asked: float | None = None

    def is_due(self, frame: FrameType) -> bool:
        """Whether it interrupts the main thread now, which is in this frame."""
        is_due, counts = False, self.mark is _mark
        try:
            if counts and not self.is_over:
                now = time.monotonic()
                self._first_asked = self._first_asked or now
                is_due = now >= self._first_asked + _patience(frame)
            self.is_over = self.is_over or is_due or not counts
        finally:
            self.is_answered = True
        return is_due


_press: _Press | None = None  # the one that has not interrupted yet


def _deliver() -> None:
    global _press
    while True:
        _press = None
        press = _press = _Press(_presses.get())
        while not press.is_over:
            press.is_answered = False
            if _add_pending_call(_IS_TRUE, _question) == 0:
                _wait_for_answer(press)
            time.sleep(_POLL_INTERVAL)


def _wait_for_answer(press: _Press) -> None:
    """Wait until the main thread has made the pending call; wake it up once if it waits in C."""
    position, since = _position(), time.monotonic()
    is_awake = False
    while not press.is_answered:
        time.sleep(_POLL_INTERVAL)
        now = _position()
        if now != position:
            position, since = now, time.monotonic()
        elif not is_awake and time.monotonic() > since + _WAIT_IN_C:
            is_awake = True
            _raise_in_c(press.mark)


def _patience(frame: FrameType | None) -> float:
    """How many seconds after the press the main thread may be interrupted in a frame; 0 means at once."""
    jumps_out = frame is not None and frame.f_lasti in _jumps_without_handler(frame.f_code)
    patience = PATIENCE if jumps_out else 0.0
    imports = False
    while frame is not None:
        code = frame.f_code
        whole = code is uninterrupted.__code__ or code.co_name in _NOT_IN
        if whole or _swallows(code):
            patience = PATIENCE
        elif code.co_name == _IMPORT:
            imports = True
        elif imports and code.co_filename.startswith(_OURS):
            return IMPORT_PATIENCE
        frame = frame.f_back
    return patience


# -- code in which an exception would be lost -------------------------------------------------------------------------


def _swallows(code: CodeType) -> bool:
    """Whether code of JAX has a bare `except:`.

    A constant shape would count as symbolic in `is_constant_dim`, and `get_out_shardings_from_executable` would ignore
    Ctrl-C.
    """
    return _JAX in code.co_filename and _has_bare_except(code)


@functools.lru_cache(4096)
def _jumps_without_handler(code: CodeType) -> frozenset[int]:
    """The offsets of backward jumps that have another exception handler than the loop to which they jump.

    Python 3.13 repeats the condition of a `while` at the end of the loop, and omits the handler of the jump there. So
    an exception at the jump would bypass the `with` or `try` around the loop.
    """
    bytecode = dis.Bytecode(code)
    entries = getattr(bytecode, "exception_entries", ())  # undocumented

    def handler(offset: int) -> object:
        return next((entry.target for entry in entries if entry.start <= offset < entry.end), None)

    jumps = (i for i in bytecode if i.opname.startswith("JUMP_BACKWARD"))
    return frozenset(i.offset for i in jumps if handler(i.offset) != handler(i.argval))


@functools.lru_cache(4096)
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
