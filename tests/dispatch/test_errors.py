"""Errors reach the user in torch's kind and words, name what was asked where, and leave the state as before."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch

import jaxtorch
from jaxtorch.dispatch.operation import Operation
from jaxtorch.lowerings.registry import Lowering


def _failing(x: Any) -> Any:
    def fail(value: np.ndarray) -> np.ndarray:
        raise ValueError("planted")

    return jax.pure_callback(fail, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_an_error_inside_xla_names_operator_and_line() -> None:
    operation = Operation(None, Lowering(_failing), name="planted_failure")
    with pytest.raises(RuntimeError, match=r"planted_failure.*test_errors\.py, line \d+"):
        operation(torch.ones(3, device="jax")).cpu()
    assert (torch.ones(2, device="jax") + 1).sum().item() == 4


def test_out_of_memory_is_torchs_own_exception() -> None:
    x = torch.ones(4, device="jax")
    before = torch.jax.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match="memory_summary"):
        torch.empty(1 << 50, device="jax")
    assert torch.jax.memory_allocated() == before
    assert x.sum().item() == 4


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: x + torch.zeros(3), RuntimeError, "same device"),
        (lambda x: x @ torch.zeros(4, 2, device="jax"), RuntimeError, None),
        (lambda x: x.view(2), RuntimeError, "invalid for input of size"),
        (lambda x: torch.zeros(2, device="jax:1"), RuntimeError, r"torch\.jax\.device"),
        (lambda x: x.to("jax:3"), RuntimeError, r"torch\.jax\.device"),
        (lambda x: x.to(torch.uint8).fill_(300), RuntimeError, "without overflow"),
        (lambda x: x.half().masked_fill(x > 2, -1e9), RuntimeError, "without overflow"),
        (lambda x: torch.full((2,), 2**70, device="jax"), (OverflowError, RuntimeError), None),
        (lambda x: x.add_(torch.zeros(2, 3, device="jax")), RuntimeError, "broadcast shape"),
        (lambda x: x.long().add_(1.5), RuntimeError, "can't be cast"),
        (lambda x: x[5], IndexError, "out of bounds"),
        (lambda x: x.item(), RuntimeError, "cannot be converted to Scalar"),
        (lambda x: x.to(torch.complex32), TypeError, "XLA has no such dtype"),
        (lambda x: torch.cat([x, torch.zeros(2, 2, device="jax")]), RuntimeError, None),
        (lambda x: torch.nn.functional.conv2d(x, x), RuntimeError, None),
        (lambda x: torch.zeros(2, device="jax", layout=torch.sparse_coo), RuntimeError, "dense"),
    ],
)
def test_bad_input(call: Any, kind: Any, text: str | None) -> None:
    x = torch.zeros(3, device="jax")
    with pytest.raises(kind, match=text):
        call(x)
    assert (x + 1).cpu().tolist() == [1.0, 1.0, 1.0]


def test_where_cpu_raises_so_does_the_device() -> None:
    """The kind of exception is the CPU's, for mistakes that the CPU can make too."""
    mistakes: list[Any] = [
        lambda d: torch.zeros(2, 3, device=d) @ torch.zeros(2, 3, device=d),
        lambda d: torch.zeros(2, 3, device=d) + torch.zeros(4, device=d),
        lambda d: torch.zeros(2, 3, device=d).sum(5),
        lambda d: torch.zeros(2, 3, device=d).reshape(7),
        lambda d: torch.zeros(3, device=d).mean(dtype=torch.int64),
        lambda d: torch.arange(5, 0, 1, device=d),
        lambda d: torch.linalg.inv(torch.zeros(2, 2, device=d)),
        lambda d: torch.bitwise_not(torch.zeros(2, device=d)),
        lambda d: torch.ones(2, device=d, requires_grad=True).add_(1),
        lambda d: torch.nn.functional.cross_entropy(
            torch.zeros(2, 3, device=d), torch.zeros(2, device=d)
        ),
    ]
    for mistake in mistakes:
        with pytest.raises(Exception) as cpu:  # noqa: PT011  (the CPU's own exception is what is asked for)
            mistake("cpu")
        with pytest.raises(cpu.type):
            mistake("jax")


def test_fallback_modes() -> None:
    x = torch.ones(4, device="jax")
    operator = torch.ops.aten._test_ambiguous_defaults  # no lowering, no decomposition
    assert operator is not None
    with (
        jaxtorch.config(fallback="error"),
        pytest.raises(NotImplementedError, match=r"aten::_test_optional_floatlist.*line \d+"),
    ):
        torch.ops.aten._test_optional_floatlist(x, [0.5])
    before = jaxtorch.fallbacks().get("aten::_test_optional_floatlist", 0)
    with jaxtorch.config(fallback="silent"):
        assert torch.ops.aten._test_optional_floatlist(x, None).device.type == "jax"
    assert jaxtorch.fallbacks()["aten::_test_optional_floatlist"] == before + 1


def test_an_interrupt_while_compiling_leaves_nothing_half_made() -> None:
    interrupted = []

    def lowering(x: Any) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return x + 1

    operation = Operation(None, Lowering(lowering), name="interrupted")
    x = torch.ones(2, device="jax")
    with pytest.raises(KeyboardInterrupt):
        operation(x)
    assert operation(x).cpu().tolist() == [2.0, 2.0]
