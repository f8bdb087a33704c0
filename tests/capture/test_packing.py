"""Sequences packed in captured code: a list of lengths is part of the program, a tensor that is an input is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from .changes.harness import CAPTURES, DOORS, Row, check

_GIVEN = """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
def total(y, lengths):
    packed = pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=False)
    return torch.tanh(pad_packed_sequence(packed, batch_first=True)[0] * y[:, :max_length]).sum(1)
y = torch.arange(12.0).reshape(3, 4, 1)
max_length = 4
"""
# The CPU's tensor is outside of the program, and one of the device is not accepted by torch either.
_TENSOR = "lengths = torch.tensor([4, 2, 3], device='cpu')"
ROWS = [
    Row(
        "a list of lengths",
        _GIVEN + "lengths = [4, 2, 3]",
        "out = total(y, lengths)",
        ("lengths = [4, 1, 4]", "lengths[1] = 3"),
        args="y",
    ),
    Row(
        "a tensor of lengths that the code finds",
        _GIVEN + _TENSOR,
        "out = total(y, lengths)",
        "lengths = torch.tensor([4, 4, 1], device='cpu')",
        args="y",
        doors=("eager", "pure", "jit", "compile"),
    ),
    Row(
        "a tensor of lengths that is an argument",
        _GIVEN + _TENSOR,
        "out = total(y, lengths)",
        "pass",
        args="y, lengths",
        doors=CAPTURES[1:],  # the tensors that a cell finds are inputs
        allowed="never",
    ),
]


@pytest.mark.parametrize(
    ("row", "door"),
    [pytest.param(r, d, id=f"{r.id} [{d}]") for r in ROWS for d in DOORS if r.applies(d)],
)
def test_packing(row: Row, door: str, tmp_path: Path) -> None:
    check(row, door, tmp_path)
