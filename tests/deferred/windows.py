"""What the tests of windows share."""

from __future__ import annotations

import torch

from jaxtorch.deferred.switch import switch
from jaxtorch.programs import stats
from jaxtorch.storage.buffer import buffer_of

Tensor = torch.Tensor


def tensor() -> Tensor:
    return torch.arange(16.0).reshape(4, 4).to("jax")


def is_pending(x: Tensor) -> bool:
    return buffer_of(x).pending


def open_calls() -> int:
    node = switch.recorder.window.node
    return 0 if node is None else node.calls


def compiled() -> list[str]:
    return [record.name for record in stats.compiled if "deferred" in record.name]
