"""The recorders of this thread, and what other code tells them while a function is traced."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .recorder import Recorder


class _Open(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.users_only = 0  # how many calls of `users_only` are open


of_thread = _Open()


@contextmanager
def users_only() -> Iterator[None]:
    """Follow only user code: libraries below a JAX function keep caches that change at each call."""
    of_thread.users_only += 1
    try:
        yield
    finally:
        of_thread.users_only -= 1


def read_whole(module: torch.nn.Module) -> None:
    """Declare that the code being traced in this thread reads all of a module without calling it."""
    for recorder in of_thread.recorders:
        recorder.reads_whole(module)


def declare_input(function: object) -> None:
    """Declare a function and its closure to be inputs of the code that is being traced in this thread.

    The variables may have other values at another call and are not dependencies, but the contents of their objects are.
    """
    function = getattr(function, "__func__", function)
    if isinstance(function, types.FunctionType):
        for recorder in of_thread.recorders:
            recorder.add_input_function(function)
