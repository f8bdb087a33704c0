"""PyTorch's operator database: its entries by name, and their samples as fresh tensors on a device."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

os.environ.setdefault("PYTORCH_TESTING_DEVICE_ONLY_FOR", "cpu")

from torch.testing._internal import common_methods_invocations, common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

# The database runs its samplers under one seed of its own, which would make their CPU results look deterministic.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

# It looks for a unittest.TestCase, which no test here is, in the source of every frame for every entry.
common_utils.extract_test_fn = lambda: None

SAMPLES = 10

# kind -> dtype of the samples: the first that the entry takes
KINDS = {
    "forward": (torch.float32,),
    "int64": (torch.int64,),
    "bfloat16": (torch.bfloat16,),
    "backward": (torch.float32,),
    "in-place": (torch.float32,),
    "out": (torch.float32,),
    "non-contiguous": (torch.float32,),
    "pure": (torch.float32, torch.int64),
    "pure-backward": (torch.float32,),
    "tpu": (torch.float32, torch.int64),
    "tpu-backward": (torch.float32,),
    "errors": (torch.float32,),  # of an error input torch chooses the dtype
}
TPU = ("tpu", "tpu-backward")
CAPTURED = ("pure", "pure-backward", *TPU)
BACKWARD = ("backward", "pure-backward", "tpu-backward")


def entry_name(op: OpInfo) -> str:
    """The entry's name, variant included, as torch prints it."""
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


@functools.cache
def entries() -> dict[str, OpInfo]:
    """All entries by name."""
    return {entry_name(op): op for op in op_db}


# The dtypes whose results are rounded, and the wide dtype that says how far.
WIDE = {
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}


def _to(device: str, dtypes: dict[torch.dtype, torch.dtype]) -> Callable[[Any], Any]:
    def move(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return dtypes.get(x, x)
        if not isinstance(x, torch.Tensor):
            return x
        source, dtype = x.detach(), dtypes.get(x.dtype, x.dtype)
        if source.layout == torch.strided and not source.is_contiguous():
            # `.to` and `clone` keep dense strides only; a sample's gaps and overlaps are part of it.
            moved = _strided_copy(source, device, dtype)
        else:
            moved = source.to(device, dtype, copy=True)
        return moved.requires_grad_(x.requires_grad)

    return move


def _strided_copy(x: torch.Tensor, device: str, dtype: torch.dtype) -> torch.Tensor:
    if 0 in x.shape:
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=device)
    count = (
        x.storage_offset() + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    )
    plain = x.conj() if x.is_conj() else x
    row = plain.as_strided((count,), (1,), 0).to(device, dtype, copy=True)
    view = row.as_strided(x.shape, x.stride(), x.storage_offset())
    return view.conj() if x.is_conj() else view


def on(op: OpInfo, sample: SampleInput, device: str, wide: bool = False) -> SampleInput:
    """The sample's tensors as fresh leaves on a device.

    Args:
        wide: with float64 for each narrower floating dtype, and complex128 for complex64.
    """
    moved = sample.transform(_to(device, WIDE if wide else {}))
    if op.name == "tensor_split":  # torch wants its split points on the CPU, whatever the device
        moved.args = tuple(a.cpu() if isinstance(a, torch.Tensor) else a for a in moved.args)
    if "device" in moved.kwargs:  # factories
        moved.kwargs = {**moved.kwargs, "device": device}
    # `to` names its device by position.
    moved.args = tuple(device if isinstance(a, str) and a == "cpu" else a for a in moved.args)
    return moved


def dtype_of(op: OpInfo, kind: str) -> torch.dtype | None:
    """The dtype of an entry's samples for a kind of check; None where the entry takes none of the kind's."""
    taken = op.supported_backward_dtypes("cpu") if kind in BACKWARD else op.supported_dtypes("cpu")
    return next((dtype for dtype in KINDS[kind] if dtype in taken), None)


def samples(op: OpInfo, kind: str, dtype: torch.dtype) -> Iterator[SampleInput]:
    """The first samples of an entry for a kind of check."""
    torch.manual_seed(0)
    iterator = iter(op.sample_inputs("cpu", dtype, requires_grad=kind in BACKWARD))
    if kind in TPU:  # of empty tensors little is left to compile
        iterator = iter(sorted(itertools.islice(iterator, SAMPLES), key=_is_empty))
    for _, sample in zip(range(SAMPLES), iterator, strict=False):
        if kind == "non-contiguous":
            try:
                sample = sample.noncontiguous()
            except RuntimeError:  # a sparse sample has no other layout
                continue
        yield sample


def _is_empty(sample: SampleInput) -> bool:
    return not all(t.numel() for t in tensors_of((inputs(sample), sample.kwargs)))


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """Every tensor in nested containers."""
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def applies(op: OpInfo, kind: str) -> bool:
    """Whether the entry claims to support this kind on the CPU."""
    if dtype_of(op, kind) is None:
        return False
    if kind in BACKWARD:
        return op.supports_autograd
    if kind == "in-place":
        return op.get_inplace() is not None
    if kind == "out":
        return op.supports_out
    return True


def inputs(sample: SampleInput) -> tuple[Any, ...]:
    """The positional arguments of a sample."""
    return (sample.input, *sample.args)
