"""torch's global settings, which captured code must not change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ..base import torch_private as private


class Modes:
    """A snapshot of torch's global settings."""

    def __init__(self) -> None:
        self._before = self._now()

    def restore(self) -> list[str]:
        """Restore the settings; return those that had changed."""
        changed = []
        for (name, now, _), (_, old, restore) in zip(self._now(), self._before, strict=True):
            if now != old:
                restore()
                changed.append(name)
        return changed

    @staticmethod
    def _now() -> list[tuple[str, object, Callable[[], object]]]:
        """The name of each setting, its value, and a function that sets this value."""
        device, dtype = private.default_device(), torch.get_default_dtype()
        grad = torch.is_grad_enabled()
        return [
            ("torch's default device", device, partial(torch.set_default_device, device)),
            ("torch's default dtype", dtype, partial(torch.set_default_dtype, dtype)),
            ("whether gradients are recorded", grad, partial(torch.set_grad_enabled, grad)),
        ]
