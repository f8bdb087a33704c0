"""torch's global settings, which captured code must leave as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..base import torch_private as private


class Modes:
    """A snapshot of torch's global settings."""

    def __init__(self) -> None:
        self._before = self._now()

    def restore(self) -> list[str]:
        """Restore the settings; return those that had changed."""
        found = []
        for (name, now, _), (_, old, set_back) in zip(self._now(), self._before, strict=True):
            if now != old:
                set_back(old)
                found.append(name)
        return found

    @staticmethod
    def _now() -> list[tuple[str, Any, Callable[[Any], Any]]]:
        return [
            ("torch's default device", private.default_device(), torch.set_default_device),
            ("torch's default dtype", torch.get_default_dtype(), torch.set_default_dtype),
            ("whether gradients are recorded", torch.is_grad_enabled(), torch.set_grad_enabled),
        ]
