"""A recorded call is the same step of a window, whether the compiled kernel or the general path records it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.deferred.recorder import Recorder
from jaxtorch.deferred.switch import switch
from jaxtorch.dispatch import deferring
from jaxtorch.dispatch.operation import Operation
from jaxtorch.dispatch.results import flatten
from jaxtorch.operators.choice import operation_of
from jaxtorch.storage.buffer import buffer_of
from jaxtorch.storage.pending import index_of

from . import COMPILED
from .test_calls import ALWAYS_GENERAL, CALLS, facts, of

pytestmark = COMPILED
aten = torch.ops.aten
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def deferred() -> Iterator[None]:
    jaxtorch.config.update(execution="deferred")
    switch.policy.pauses = False
    try:
        yield
    finally:
        switch.policy.pauses = True
        jaxtorch.config.update(execution="immediate")


def watch_general(monkeypatch: Any) -> list[object]:
    """The operations whose general path is reached from now on."""
    reached: list[object] = []
    original = Operation.general

    def general(self: Operation, *args: object, **kwargs: object) -> object:
        reached.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Operation, "general", general)
    return reached


def recorded(
    way: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], object, list[object]]:
    """What three calls give, the node of the tree that they reach, and what else the window recorded."""
    switch.recorder.flush()
    first = aten.relu.default(torch.ones(2, device="jax"))  # opens the window
    made = [way(*args, **kwargs) for _ in range(3)]
    window = switch.recorder.window
    pending = [buffer_of(r).pending and index_of(buffer_of(r)) for r in tensors_in(made[0])]
    counts = (len(window.inputs), len(window.buffers))
    noted = [window.numbers[:], window.offsets[:], *counts, pending]
    node = window.node
    switch.recorder.flush()
    assert first.tolist() == [1.0, 1.0]
    return made, node, noted


def tensors_in(tree: object) -> list[Tensor]:
    return [leaf for leaf in flatten(tree) if isinstance(leaf, Tensor)]


def steps(way: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[object, ...]:
    """Everything that calls leave behind."""
    made, *rest = recorded(way, args, kwargs)
    return *rest, [facts(m) for m in made]


@pytest.mark.parametrize("name", sorted(set(CALLS) - ALWAYS_GENERAL))
def test_both_take_the_same_steps(name: str, monkeypatch: Any) -> None:
    op, args, *rest = CALLS[name]
    kwargs: dict[str, Any] = rest[0] if rest else {}
    kernel = operation_of(op).kernel
    expected = steps(kernel.general, args, kwargs)
    for _ in range(2):  # learned, known
        steps(kernel, args, kwargs)
    reached = watch_general(monkeypatch)
    assert steps(kernel, args, kwargs) == expected
    assert operation_of(op) not in reached


def long(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [of(3, n % 2 + 1, dtype=dtype) for n in range(20)]


def scalars(value: float) -> list[Tensor]:
    return [torch.full((), value, device="jax") for _ in range(20)]


NUMBERS = {"lr": 0.1, "weight_decay": 0.01, "maximize": False}
# An operator that writes, what makes its arguments, and its keywords.
WRITES: dict[str, tuple[Any, ...]] = {
    "a tensor": (aten.add_.Tensor, lambda: (of(3, 4), of(3, 4))),
    "with a number": (aten.mul_.Tensor, lambda: (of(3, 4), 2.5)),
    "with a keyword": (aten.add_.Tensor, lambda: (of(3, 4), of(3, 4)), {"alpha": 2}),
    "filled": (aten.zero_.default, lambda: (of(3, 4),)),
    "at indices": (
        aten.index_put_.default,
        lambda: (of(3, 4), [None, of(2, dtype=torch.int64)], of(3, 2)),
    ),
    "a view": (aten.add_.Tensor, lambda: (of(3, 4)[1], of(4))),
    "a transposed view": (aten.relu_.default, lambda: (of(3, 4).t(),)),
    "a large tensor": (aten.add_.Tensor, lambda: (of(128, 128), 1)),
    "another dtype": (aten.add_.Tensor, lambda: (of(3), of(3, dtype=torch.int64))),
    "out": (aten.add.out, lambda: (of(3), of(3)), {"out": of(3)}),
    "two out": (
        aten.aminmax.out,
        lambda: (of(3, 4),),
        {"dim": 1, "min": of(3), "max": of(3)},
    ),
    "a list": (aten._foreach_add_.Scalar, lambda: ([of(3), of(4)], 1)),
    "a long list": (aten._foreach_add_.Scalar, lambda: (long(), 1)),
    "a long list of numbers": (
        aten._foreach_addcdiv_.ScalarList,
        lambda: (long(), long(), [t + 3 for t in long()], [n / 4 + 1 for n in range(20)]),
    ),
    "results and statistics": (
        aten._native_batch_norm_legit.default,
        lambda: (of(3, 4), None, None, of(4), of(4), True, 0.1, 1e-5),
    ),
    "SGD": (
        aten._fused_sgd_.default,
        lambda: (long(), long(), long()),
        NUMBERS | {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "is_first_step": False},
    ),
    "AdamW": (
        aten._fused_adamw_.default,
        lambda: (long(), long(), long(), [t.abs() for t in long()], [], scalars(1)),
        NUMBERS | {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False},
    ),
}


def written(way: Any, make: Any, kwargs: dict[str, Any]) -> tuple[object, object, object]:
    """As `steps`, and which arguments are returned, and what is in them afterwards."""
    args = make()
    kwargs = {k: v.clone() if isinstance(v, Tensor) else v for k, v in kwargs.items()}
    made, node, noted = recorded(way, args, kwargs)
    inside = flatten([*args, *kwargs.values()])
    returned = [
        [next((i for i, a in enumerate(inside) if a is r), facts(r)) for r in flatten(m)]
        for m in made
    ]
    return node, (noted, returned, type(made[0])), facts(inside)


@pytest.mark.parametrize("name", WRITES)
def test_both_write_in_the_same_steps(name: str, monkeypatch: Any) -> None:
    op, make, *rest = WRITES[name]
    kwargs: dict[str, Any] = rest[0] if rest else {}
    kernel = operation_of(op).kernel
    expected = written(kernel.general, make, kwargs)
    for _ in range(2):  # learned, known
        written(kernel, make, kwargs)
    reached = watch_general(monkeypatch)
    assert written(kernel, make, kwargs) == expected
    assert operation_of(op) not in reached
    jaxtorch.config.update(execution="immediate")
    try:
        assert written(kernel, make, kwargs)[2] == expected[2]
    finally:
        jaxtorch.config.update(execution="deferred")


def test_tensors_that_share_memory_are_not_known() -> None:
    """How they overlap is more than the key of a call says: torch refuses some overlaps."""
    expected = of(6).cpu()
    expected.add_(expected)
    expected[:3].add_(expected[3:])
    for _ in range(4):
        x = of(6)
        x.add_(x)
        x[:3].add_(x[3:])
        with pytest.raises(RuntimeError, match="single memory location"):
            x[:4].add_(x[2:])
        assert x.tolist() == expected.tolist()


def test_a_long_list_that_does_not_fit_the_window(monkeypatch: Any) -> None:
    """All parts are recorded before the window ends, or none."""
    tensors = scalars(0)
    for _ in range(3):
        torch._foreach_add_([*tensors, *long()], 1)
        switch.recorder.flush()
    monkeypatch.setattr(switch.recorder, "most_calls", 4)
    for _ in range(10):
        torch._foreach_add_([*tensors, *long()], 1)
    assert [t.item() for t in tensors] == [13.0] * 20


def test_a_function_without_a_schema() -> None:
    q = of(1, 2, 3, 4)
    attention = torch.nn.functional.scaled_dot_product_attention
    for _ in range(3):
        for causal in (False, True):
            a = attention(q, q, q, is_causal=causal)
            b = attention(q.cpu(), q.cpu(), q.cpu(), is_causal=causal)
            torch.testing.assert_close(a.cpu(), b)


def test_a_number_that_the_cpu_refuses() -> None:
    """It is checked at each call: the first ones were accepted."""
    x = of(3, 4)
    for _ in range(4):
        torch.renorm(x, 2, 0, 1.0)
        x.clone().renorm_(2, 0, 1.0)
    for call in (torch.renorm, Tensor.renorm_):
        with pytest.raises(RuntimeError, match="maxnorm"):
            call(x, 2, 0, -1.0)


def test_a_window_that_is_full_runs(monkeypatch: Any) -> None:
    monkeypatch.setattr(switch.recorder, "most_calls", 10)
    x = torch.ones(3, device="jax")
    for _ in range(3):
        y = x + x
        switch.recorder.flush()
    for _ in range(34):
        y = y + x
    assert switch.recorder.window.node.calls < 10
    assert y.tolist() == [36.0] * 3


def test_an_input_that_was_written_since() -> None:
    x, y = torch.ones(3, device="jax"), torch.ones(3, device="jax")
    for i in range(5):
        z = x + y
        x.add_(1)
        assert (z + x).tolist() == [2.0 * i + 4] * 3


NUMBERS_OF = {
    torch.uint8: [0, 255, 256, -1, -255, -256, 254.9, 255.5, True],
    torch.int8: [127, 128, -128, -129, 127.5, 1e30, 2**80],
    torch.int32: [2**31 - 1, 2**31, -(2**31), -(2**31) - 1],
    torch.int64: [2**53, 2**53 + 1, 2**63 - 1, -(2**63), 9e18, 1e19],
    torch.float16: [65504, 65505, 65504.0, 65505.0, 1e6, -1e6, 2**53, math.inf, math.nan],
    torch.bfloat16: [3.38e38, 3.4e38, -math.inf],
    torch.float32: [3.4e38, 3.5e38, 2**62, 2**53 + 1, -math.nan],
}


@pytest.mark.parametrize("dtype", NUMBERS_OF, ids=str)
def test_a_number_that_does_not_fit_is_refused_at_its_line(dtype: torch.dtype) -> None:
    def filled(number: float, device: str) -> object:
        mask = torch.ones(3, dtype=torch.bool, device=device)
        try:
            made = torch.zeros(3, dtype=dtype, device=device).masked_fill(mask, number)
        except (RuntimeError, OverflowError) as error:
            return str(error)
        return repr(made.tolist())

    for _ in range(4):
        good = filled(2.0, "jax"), filled(2, "jax")
    assert good == (filled(2.0, "cpu"), filled(2, "cpu"))
    for number in NUMBERS_OF[dtype]:
        assert filled(number, "jax") == filled(number, "cpu"), number


def test_other_recorders_are_not_bypassed(monkeypatch: Any) -> None:
    """Only the class that the module was told about has the slots that it reads."""
    x = torch.ones(3, device="jax")
    for _ in range(3):
        x + x
    seen: list[object] = []

    class Other(Recorder):
        def call(self, operation: Any, program: Any, call: Any) -> object:
            seen.append(program)
            return NotImplemented

        hot = call

    switch.recorder.flush()
    monkeypatch.setattr(deferring, "recorder", Other(switch.policy))
    assert (x + x).tolist() == [2.0] * 3
    assert seen
