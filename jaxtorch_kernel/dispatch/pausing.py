"""A per-thread profile hook that is paused while operators of the device run.

`capture/` records what traced code reads by a hook that Python calls at each function call. An operator of the device
calls thousands of JAX functions, which need not be recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Hook = Callable[[FrameType, str, object], object]

_thread = threading.local()


@contextmanager
def profiling(hook: Hook) -> Iterator[None]:
    """Call `hook(frame, event, argument)` for each call in this thread, as `sys.setprofile` does."""
    before = sys.getprofile()
    outer = getattr(_thread, "hook", None)
    _thread.hook = hook
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(None)
        _thread.hook = outer
        enable = getattr(before, "enable", None)
        if (
            enable is not None
        ):  # a `cProfile` profiler, which is written in C and switched on this way
            enable()
        elif before is not None:
            sys.setprofile(before)


def pause() -> Hook | None:
    """Switch this thread's hook off. Pass the result to `resume`."""
    hook: Hook | None = getattr(_thread, "hook", None)
    if hook is not None:
        sys.setprofile(None)
    return hook


def resume(hook: Hook | None) -> None:
    """Switch the hook on again."""
    if hook is not None:
        sys.setprofile(hook)


@contextmanager
def paused() -> Iterator[None]:
    """Switch the hook off in a `with` block."""
    hook = pause()
    try:
        yield
    finally:
        resume(hook)
