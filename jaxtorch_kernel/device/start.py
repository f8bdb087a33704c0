"""The first use of the device: jax starts, the operators are registered, and torch's classes are extended."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..storage import placement
from . import interrupts

_lock = threading.RLock()
_run: Callable[..., object] | None = None


def first_use() -> Callable[..., object]:
    """Start jax and the rest of the device, once; returns the function that runs any operator.

    torch calls it (as `torch.jax._lazy_init`) before a Python function makes the first tensor on the device. If
    something else makes the first tensor, the device's fallback kernel calls it (`autoload.py`).
    """
    with _lock:
        if _run is None:
            # An interrupted import would leave half of jax behind for the rest of the session, and an interrupted
            # registration half of the device. jax's start can take minutes, and can be interrupted.
            interrupts.held_back(_import)
            # It may fail, for example if a library is missing. Nothing has been registered by then, so the next attempt
            # fails with the same message.
            placement.devices()
            try:
                interrupts.held_back(_install)
            finally:
                interrupts.install()
    assert _run is not None
    return _run


def _import() -> None:
    from . import installation  # noqa: F401  # it imports jax, which `import torch` must not do


def _install() -> None:
    global _run
    from . import installation

    _run = installation.install()
