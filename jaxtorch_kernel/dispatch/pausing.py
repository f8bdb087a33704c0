"""A per-thread profile hook that is paused while operators of the device run.

`capture/` uses a hook that Python calls at each function call to record what traced code reads. An operator of the
device runs thousands of JAX functions, which need not be recorded.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_own = threading.local()


@contextmanager
def profiling(hook: Callable[..., Any]) -> Iterator[None]:
    """Call `hook(frame, event, argument)` for each call in this thread, as `sys.setprofile` has it."""
    before: Any = sys.getprofile()
    outer = getattr(_own, "hook", None)
    _own.hook = hook
    sys.setprofile(hook)
    try:
        yield
    finally:
        sys.setprofile(None)
        _own.hook = outer
        if hasattr(before, "enable"):  # `cProfile` is C: it must be switched on again its own way
            before.enable()
        elif before is not None:
            sys.setprofile(before)


def pause() -> Any:
    """Switch this thread's hook off; hand what it returns to `resume`."""
    hook = getattr(_own, "hook", None)
    if hook is not None:
        sys.setprofile(None)
    return hook


def resume(hook: Any) -> None:
    """Switch it on again."""
    if hook is not None:
        sys.setprofile(hook)


@contextmanager
def paused() -> Iterator[None]:
    """Hold while the hook is to be off."""
    hook = pause()
    try:
        yield
    finally:
        resume(hook)
