"""The default device of a session: `on` makes it jax, `off` gives back exactly what stood before.

`torch.set_default_device` covers factories, `torch.tensor` and module construction. `torch.load` puts tensors
where they were saved, whatever the default device: while the session is on, a load without `map_location` goes
to the default device, too. An explicit device wins everywhere. Compiled programs are kept across sessions meanwhile
(`base/compile_cache.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.serialization

from ..base import torch_private as private
from ..base.compile_cache import compile_cache

_restore_location = torch.serialization._get_restore_location


class Session:
    """Whether jax is the default device of this process, and what was before."""

    def __init__(self) -> None:
        self.active = False
        self._before: torch.device | None = None

    def on(self) -> None:
        """Make jax the default device. Again: the same, with `off` going back to before the first.

        Raises:
            RuntimeError: a `with torch.device(...)` block is open, which would undo it when it ends.
        """
        _check_no_block("on")
        if not self.active:
            self._before = private.default_device()
            self.active = True
        torch.serialization._get_restore_location = _load_to_default
        torch.set_default_device("jax")
        compile_cache.on("session")

    def off(self) -> None:
        """Restore the default device from before `on`; without an `on` before it, do nothing.

        Raises:
            RuntimeError: a `with torch.device(...)` block is open, which would undo it when it ends.
        """
        if not self.active:
            return
        _check_no_block("off")
        torch.set_default_device(self._before)
        torch.serialization._get_restore_location = _restore_location
        self.active, self._before = False, None
        compile_cache.off("session")


def _check_no_block(word: str) -> None:
    block = private.device_block()
    if block is not None:
        raise RuntimeError(
            f"a `with torch.device({str(block)!r})` block is open here and would undo `{word}` when it ends: "
            f"say `{word}` outside of it"
        )


def _load_to_default(map_location: Any) -> Any:
    """In place of torch's `_get_restore_location`, which knows nothing of the default device."""
    if map_location is None and torch.get_default_device().type == "jax":
        map_location = "jax"
    return _restore_location(map_location)


session = Session()
