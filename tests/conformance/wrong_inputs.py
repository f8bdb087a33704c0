"""The inputs that PyTorch's operator database says are wrong: the device raises the CPU's kind of exception."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .database import inputs, on


def error_inputs(op: OpInfo) -> Iterator[tuple[int, SampleInput, Exception]]:
    """The inputs that an entry says are wrong and the CPU refuses, numbered, and the CPU's error."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for i, wrong in enumerate(op.error_inputs("cpu")):
        error = raised(op, wrong.sample_input, "cpu")
        if error is not None:  # else it is refused elsewhere, or for a variant alone
            yield i, wrong.sample_input, error


def raised(op: OpInfo, sample: SampleInput, device: str) -> Exception | None:
    """What a call raises."""
    try:
        moved = on(op, sample, device)
        op(*inputs(moved), **moved.kwargs)
    except Exception as error:
        return error
    return None


def wrong_errors(op: OpInfo) -> tuple[int, list[str]]:
    """The number of an entry's error inputs, and those for which the device raises no error or one of another kind."""
    count, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, sample, expected in error_inputs(op):
            count += 1
            actual = raised(op, sample, "jax")
            if type(actual) is not type(expected):
                wrong.append(f"error input {i}: {actual!r} for {expected!r}"[:600])
    return count, wrong
