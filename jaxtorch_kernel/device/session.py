"""The default device of a session: `on` sets it to jax, `off` restores the previous one.

`torch.set_default_device` covers factories, `torch.tensor` and module construction. `torch.load` ignores it and puts
tensors on the device that they were saved from; while the session is on, a load without `map_location` also goes to
the default device. An explicit device always takes precedence. While the session is on, compiled programs are cached
on disk (`base/compile_cache.py`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..base import torch_changes
from ..base import torch_private as private
from ..base.compile_cache import compile_cache


class Session:
    """Whether jax is the default device of this process, and the previous default."""

    def __init__(self) -> None:
        self.active = False
        self._before: torch.device | None = None

    def on(self) -> None:
        """Make jax the default device. Repeated calls change nothing: `off` restores the state before the first.

        Raises:
            RuntimeError: a `with torch.device(...)` block is open, which would undo it when it ends.
        """
        _check_no_block("on")
        if not self.active:
            self._before = private.default_device()
            self.active = True
        torch_changes.restore_by(_load_to_default)
        torch.set_default_device("jax")
        compile_cache.on("session")

    def off(self) -> None:
        """Restore the default device from before `on`; without a previous `on`, do nothing.

        Raises:
            RuntimeError: a `with torch.device(...)` block is open, which would undo it when it ends.
        """
        if not self.active:
            return
        _check_no_block("off")
        torch.set_default_device(self._before)
        torch_changes.restore_by(torch_changes.restore_location)
        self.active, self._before = False, None
        compile_cache.off("session")


def _check_no_block(command: str) -> None:
    block = private.device_block()
    if block is not None:
        raise RuntimeError(
            f"a `with torch.device({str(block)!r})` block is open and would undo `{command}` when it ends: "
            f"use `{command}` outside the block"
        )


def _load_to_default(map_location: Any) -> Any:
    """Replaces torch's `_get_restore_location`, which ignores the default device."""
    if map_location is None and torch.get_default_device().type == "jax":
        map_location = "jax"
    return torch_changes.restore_location(map_location)


session = Session()
