"""`nn.DataParallel` and `nn.parallel` on the device: the copies between devices, which builds for the CPU lack.

torch sees one jax device, so nothing is split or copied: each function returns what the one device gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..base import torch_changes
from ..base.torch_private import DEVICE
from ..storage.checks import check_index

_CPU = -1  # torch's index of the CPU, where a device is an index


def _check(devices: Sequence[int]) -> None:
    for index in devices:
        check_index(torch.device("jax", index))


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: object = None,
) -> list[torch.Tensor]:
    """The parts of a tensor, one for each entry of `devices`."""
    _check(devices)
    parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
    return [part.to(DEVICE) for part in parts]


def _scatter_out(
    tensor: torch.Tensor, out: list[torch.Tensor], dim: int = 0, streams: object = None
) -> list[torch.Tensor]:
    parts = tensor.split([part.size(dim) for part in out], dim)
    for part, value in zip(out, parts, strict=True):
        part.copy_(value)
    return out


def _gather(
    tensors: Sequence[torch.Tensor], dim: int, destination: int | None = None
) -> torch.Tensor:
    whole = torch.cat(list(tensors), dim)
    if destination == _CPU:
        return whole.cpu()
    _check([destination or 0])
    return whole.to(DEVICE)


def _gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return out.copy_(torch.cat(list(tensors), dim))


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    _check(devices)
    return [tensor.to(DEVICE) for _ in devices]


def _broadcast_out(tensor: torch.Tensor, out: list[torch.Tensor]) -> list[torch.Tensor]:
    for copy in out:
        copy.copy_(tensor)
    return out


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    _check(devices)
    return [[tensor.to(DEVICE) for tensor in tensors] for _ in devices]


def install() -> None:
    """Let `torch.nn.parallel` find these functions, unless torch has a cuda device, which it then prefers."""
    torch_changes.provide_copies(
        {
            "_scatter": _scatter,
            "_scatter_out": _scatter_out,
            "_gather": _gather,
            "_gather_out": _gather_out,
            "_broadcast": _broadcast,
            "_broadcast_out": _broadcast_out,
            "_broadcast_coalesced": _broadcast_coalesced,
        }
    )
