"""Lists whose tensors share memory that the call writes: positions run in order, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.dispatch.schema import TENSORS, Signature
from tests.deferred import modes

Tensor = torch.Tensor
COUNT = 6


class Memory:
    """x, y, z and two views of z that overlap; a list that writes them, and lists that read them."""

    def __init__(self, device: str):
        made = torch.tensor([0.3, 0.6]), torch.tensor([0.8, 0.5]), torch.tensor([0.2, 0.4, 0.7])
        x, y, z = self.all = [t.to(device) for t in made]
        left, right = z[:2], z[1:]
        # A position does not read the other view of the z that it writes: torch refuses that.
        self.written = [x, y, x, left, right, y]
        self.read = [[y, x, x, y, x, left], [x, x, y, x, y, x], [y, y, x, x, y, right]]

    def values(self) -> list[list[float]]:
        return [t.tolist() for t in self.all]


def _written_lists() -> list[Any]:
    """The `_foreach_` operators that write; not that of matrices."""
    names = {s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas()}
    packets = [getattr(torch.ops.aten, n) for n in sorted(names) if n.startswith("_foreach_")]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    signatures = [(op, Signature(op)) for op in ops if "_mm" not in str(op)]
    return [
        op
        for op, signature in signatures
        if not signature.is_out and any(signature.kinds[i] == TENSORS for i in signature.written)
    ]


def _foreach(op: Any, memory: Memory) -> list[Any]:
    """Arguments that share memory."""
    lists = iter([memory.written, *memory.read])
    numbers = [0.5 + 0.1 * i for i in range(COUNT)]
    made: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            made.append(next(lists))
        elif kind == "List[number]":
            made.append(numbers)
        elif argument.has_default_value():
            continue
        elif kind == "Tensor":
            made.append(torch.tensor(numbers) if "addc" in str(op) else torch.tensor(0.7))
        else:
            made.append(0.3)
    return made


@pytest.mark.parametrize("op", _written_lists(), ids=str)
def test_as_on_the_cpu(op: Any) -> None:
    expected, actual = Memory("cpu"), Memory("jax")
    op(*_foreach(op, expected))
    op(*_foreach(op, actual))
    for a, e in zip(actual.all, expected.all, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-5, equal_nan=True)


def _each(memory: Memory) -> None:
    torch._foreach_add_(memory.written, memory.read[0])
    torch._foreach_mul_(memory.written, [1.0 + 0.5 * i for i in range(COUNT)])
    torch._foreach_addcmul_(memory.written, memory.read[1], memory.read[2], 0.5)


def _long(memory: Memory) -> None:
    """A list that would run in parts if its tensors shared no memory."""
    torch._foreach_add_(memory.written * 4, memory.read[0] * 4)
    torch._foreach_mul_([t for t in memory.all for _ in range(6)], 1.1)


def _a_tensor_for_all(memory: Memory) -> None:
    x, y, z = memory.all
    torch._foreach_mul_([x[0], y, z, x[1]], x[0])


def _unscale(memory: Memory) -> None:
    x, y, z = memory.all
    found, scale = torch.zeros(1, device=x.device), torch.full((), 0.5, device=x.device)
    torch._amp_foreach_non_finite_check_and_unscale_([x, y, x, z, z], found, scale)
    y.add_(found)


def _fused(rule: str, scaled: bool = False) -> Callable[[Memory], None]:
    """A step over parameters that occur twice, with their states, and gradients that are parameters."""

    def step(memory: Memory) -> None:
        x, y, z = memory.all
        parameters, gradients = [x, y, x, z, z], [y, torch.ones_like(y), y, z.clone(), z]
        if scaled:
            gradients = [t.clone() for t in gradients]
        states = [[torch.full_like(t, 0.3 + 0.1 * k) for t in memory.all] for k in range(2)]
        first, second = ([s[0], s[1], s[0], s[2], s[2]] for s in states)
        counts = [torch.tensor(2.0, device=x.device) for _ in parameters]
        options: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.01, "maximize": False}
        if scaled:
            options["grad_scale"] = torch.tensor(2.0, device=x.device)
            options["found_inf"] = torch.tensor(0.0, device=x.device)
        lists = parameters, gradients, first
        if rule == "sgd":
            options |= {"momentum": 0.9, "dampening": 0.1, "nesterov": True}
            torch._fused_sgd_(*lists, is_first_step=False, **options)
        elif rule == "adagrad":
            torch._fused_adagrad_(*lists, counts, lr_decay=0.1, eps=1e-8, **options)
        else:
            options |= {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
            op = torch._fused_adam_ if rule == "adam" else torch._fused_adamw_
            op(*lists, second, [], counts, **options)

    return step


CALLS: dict[str, Callable[[Memory], None]] = {
    "each": _each,
    "long": _long,
    "a tensor for all": _a_tensor_for_all,
    "unscale": _unscale,
    **{rule: _fused(rule) for rule in ("sgd", "adam", "adamw", "adagrad")},
    **{f"{rule}, scaled": _fused(rule, True) for rule in ("sgd", "adamw")},
}


def _deferred(mode: str) -> Callable[[Callable[[], None]], None]:
    def run(call: Callable[[], None]) -> None:
        with modes.deferred(mode):
            call()
            torch.jax.synchronize()

    return run


RUNS: dict[str, Callable[[Callable[[], None]], object]] = {
    "eager": lambda call: call(),
    "deferred": _deferred("steps"),
    "deferred, one program": _deferred("compiled"),
    "jit": lambda call: jaxtorch.jit(call)(),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", CALLS)
def test_calls_run_in_order(name: str, run: str) -> None:
    expected, actual = Memory("cpu"), Memory("jax")
    before = expected.values()
    CALLS[name](expected)
    RUNS[run](lambda: CALLS[name](actual))
    assert expected.values() != before
    for a, e in zip(actual.all, expected.all, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-5, atol=1e-6)


def test_compiled_code_runs_in_order() -> None:
    def code(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        torch._foreach_add_([x, y, x], [y, x, x])
        torch._foreach_mul_([z[:2], z[1:]], 2.0)
        return x + y

    expected, actual = Memory("cpu"), Memory("jax")
    wanted = code(*expected.all)
    result = torch.compile(code, backend="jax")(*actual.all)
    for a, e in zip([result, *actual.all], [wanted, *expected.all], strict=True):
        torch.testing.assert_close(a.cpu(), e)
