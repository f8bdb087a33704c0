"""The device in a forked process.

JAX's threads do not survive a fork: the first computation in the child would block forever. So once jax has started,
every operator of the device raises an explanatory error in a child process, and the child's default device is the CPU:
a forked `DataLoader` worker runs on CPU tensors and is not affected. JAX's own warning at each fork is suppressed,
because the deadlock that it warns about can no longer happen.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NoReturn

import torch

started = False  # jax runs in this process
forked = False  # this process was forked from one where jax ran

_MESSAGE = (
    "Cannot use the jax device in a forked process: JAX's threads do not survive a fork. Work on CPU tensors here "
    "(a DataLoader's workers should), or start the process with the 'spawn' method: "
    "DataLoader(..., multiprocessing_context='spawn'), torch.multiprocessing.set_start_method('spawn')."
)
_filters: Any = None


def start() -> None:
    """Register the hooks for forks. Call this after jax's backends have started.

    Hooks that run before a fork do so in reverse order of registration, and `_hide_warning` must run before JAX's hook.
    """
    global started
    if started:
        return
    started = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_hide_warning, after_in_parent=_show_warning, after_in_child=_in_child
        )


def _hide_warning() -> None:
    global _filters
    _filters = list(warnings.filters)
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)


def _show_warning() -> None:
    global _filters
    warnings.filters[:] = _filters  # type: ignore[index]
    _filters = None
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _in_child() -> None:
    global forked
    _show_warning()
    forked = True
    from ..base import options, torch_private
    from ..dispatch import building, deferring, read
    from ..storage import pending, placement, transfer

    # Block every way into JAX. Changed options make every key new, so no cached program is found. No program is built,
    # and no array is read, waited for or made.
    options._interned.clear()
    options.config._base = options._changed(options.config._base, {})
    building.Builder.build = _refuse  # type: ignore[method-assign]
    read.buffer_of = _refuse  # type: ignore[attr-defined]
    placement.current = placement.devices = _refuse
    transfer.wait = _refuse
    deferring.recorder = None
    pending.flush = _refuse
    if any(device.type == "jax" for device in torch_private.default_devices()):
        torch.device("cpu").__enter__()  # overrides the parent's default device, however it was set


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(_MESSAGE)
