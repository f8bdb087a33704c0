"""A pending buffer has an index in place of its array, and another class: both or neither, at every bytecode."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from jaxtorch.storage.buffer import buffer_of
from jaxtorch.storage.pending import index_of, settle, suspend


def test_ctrl_c_finds_a_buffer_pending_or_not() -> None:
    tensor = torch.ones(2, device="jax")
    buffer = buffer_of(tensor)
    array = buffer.array
    seen = []

    def check(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes = True
        seen.append(buffer.pending)
        assert (type(index_of(buffer)) is int) == buffer.pending
        return check

    sys.settrace(check)
    try:
        suspend([buffer], [3])
        suspend([buffer], [4])
        settle([buffer], [array])
    finally:
        sys.settrace(None)
    assert {True, False} == set(seen)
    assert tensor.tolist() == [1, 1]
