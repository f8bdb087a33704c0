"""Loads the compiled module of `native/`.

A session that finds it compiled uses it from the start. Another one compiles it in the background, and takes it over
between two training steps or notebook cells.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import TypeVar

from ..base.program_files import refusal
from .build import failure, missing, start, target

Function = TypeVar("Function", bound=Callable[..., object])

# What other parts do with the module, once it is there.
_connected: list[Callable[[ModuleType], None]] = []
# The functions that the module has as well, by name.
replaced: dict[str, Callable[..., object]] = {}
# Where a compiler writes the module that this session takes over; None if there is nothing to wait for.
_awaited: Path | None = None
# The name of the thread that waits for Ctrl-C (`device/interrupts.py`). It never calls torch.
INTERRUPTS = "jaxtorch-interrupts"
# Threads of a notebook's kernel and of these packages wait in their own code, and never call torch.
_SERVERS = ("IPython", "debugpy", "ipykernel", "jupyter_client", "tornado", "zmq")


def _wanted() -> ModuleType | None:
    """The compiled module; None if it is not wanted or not compiled yet. Then its compilation starts, if it can."""
    global _awaited
    if os.environ.get("JAXTORCH_NATIVE") == "off":
        return None
    path = target()
    if refusal(path.parent):  # others can write there, or nobody can
        return None
    if path.exists():
        return load(path)
    if missing() is None:
        start()
        _awaited = path
    return None


def load(path: Path) -> ModuleType | None:
    """The module in this file; None if it cannot be loaded."""
    loader = ExtensionFileLoader("jaxtorch.native.calls", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # compiled with another C++ library, for one
        return None
    return module


calls = _wanted()


def state() -> str:
    """Where eager calls run, and why: for `%jax status`."""
    return "in C++" if calls is not None else f"in Python: {_why_not()}"


def _why_not() -> str:
    if os.environ.get("JAXTORCH_NATIVE") == "off":
        return "JAXTORCH_NATIVE is off"
    path = target()
    if failure(path).exists():
        return f"the C++ compiler failed, see {failure(path)}"
    if _awaited is not None:
        return "their C++ is being compiled, and this session will take it over"
    return missing() or refusal(path.parent) or f"{path} cannot be loaded"


def when_loaded(connect: Callable[[ModuleType], None]) -> None:
    """Call a function with the module: now, or when this session takes it over."""
    _connected.append(connect)
    if calls is not None:
        connect(calls)


def compiled(function: Function) -> Function:
    """What is called under the name of a function from now on: the module's function of this name, if it is loaded."""
    namespace, name = function.__globals__, function.__name__
    replaced[name] = function

    @when_loaded
    def connect(calls: ModuleType) -> None:
        namespace[name] = getattr(calls, name)

    found: Function = function if calls is None else getattr(calls, name)
    return found


def take_over() -> None:
    """Use the module from now on, if it was compiled since this session began.

    torch's dispatcher does not expect that a kernel is exchanged while another thread calls it, so nothing happens
    while other threads may be doing that. This is called between training steps and between notebook cells.
    """
    global calls, _awaited
    path = _awaited
    if path is None:
        return
    if not path.exists():
        if failure(path).exists():
            _awaited = None
        return
    if not _others_wait():
        return
    _awaited = None
    module = load(path)
    if module is None:
        return
    calls = module
    for connect in _connected:
        connect(module)


def _others_wait() -> bool:
    """Whether all other threads of Python wait, in the standard library or in a notebook's kernel."""
    known = {threading.get_ident()}
    known |= {t.ident or 0 for t in threading.enumerate() if t.name == INTERRUPTS}
    return all(_waits(f) for thread, f in sys._current_frames().items() if thread not in known)


def _waits(frame: FrameType) -> bool:
    paths = sysconfig.get_paths()
    file = Path(frame.f_code.co_filename)
    for packages in (paths["purelib"], paths["platlib"]):
        if file.is_relative_to(packages):
            return file.relative_to(packages).parts[0] in _SERVERS
    return file.is_relative_to(paths["stdlib"]) or str(file).startswith("<frozen ")
