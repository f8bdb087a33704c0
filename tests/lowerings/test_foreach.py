"""`torch._foreach_*`: as on the CPU, one program for each short list, none for a new number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.base.options import config
from jaxtorch.dispatch.schema import Signature
from jaxtorch.lowerings.foreach import _ONE
from jaxtorch.lowerings.registry import LOWERINGS

SHAPES = [(2, 3), (), (0,)]


def _positive(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(shape, generator=generator) * 0.8 + 0.1 for shape in SHAPES]


def _arguments(op: Any) -> list[Any]:
    """Something for every argument the overload needs, by its type."""
    made: list[Any] = []
    for i, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if kind == "List[Tensor]":
            made.append(_positive(i))
        elif kind == "List[number]":
            made.append([0.5 + 0.1 * k for k in range(len(SHAPES))])
        elif argument.has_default_value():
            continue
        elif kind == "Tensor":
            made.append(torch.tensor(0.7))
        else:
            made.append(0.3)
    if "max" in op._schema.name and "maximum" not in op._schema.name and len(made) == 1:
        made = [[t for t in made[0] if t.numel()]]
    if op._schema.name.endswith("_foreach_mm"):
        made = [[torch.ones(2, 3), torch.rand(1, 3)], [torch.rand(3, 2), torch.ones(3, 3)]]
    if op._overloadname == "Tensor" and "addc" in op._schema.name:
        made[-1] = torch.linspace(0.1, 1, len(SHAPES))
    return made


def _overloads() -> list[Any]:
    names = {s.name.removeprefix("aten::") for s in torch._C._jit_get_all_schemas()}
    packets = [getattr(torch.ops.aten, n) for n in sorted(names) if n.startswith("_foreach_")]
    ops = [getattr(packet, overload) for packet in packets for overload in packet.overloads()]
    return [op for op in ops if not Signature(op).is_out]


def _on_device(arguments: list[Any]) -> list[Any]:
    # A tensor beside the lists stays on the CPU: a number, or numbers, as on cuda.
    return [
        [t.to("jax") if isinstance(t, torch.Tensor) else t for t in a] if isinstance(a, list) else a
        for a in arguments
    ]


def test_every_overload_has_a_lowering() -> None:
    torch.ones((), device="jax")
    assert not [name for name in _ONE.values() if name not in LOWERINGS]


@pytest.mark.parametrize("op", _overloads(), ids=str)
def test_as_on_the_cpu_and_one_program(op: Any) -> None:
    arguments = _arguments(op)
    on_device = _on_device(arguments)
    before = jaxtorch.compile_count()
    with config(fallback="error"):
        actual = op(*on_device)
    assert jaxtorch.compile_count() - before <= 1
    expected = op(*arguments)
    if Signature(op).written:
        actual, expected = on_device[0], arguments[0]
    for a, e in zip(actual, expected, strict=True):
        assert a.device.type == "jax"
        torch.testing.assert_close(a.cpu(), e)


def test_many_tensors_of_many_dtypes_are_few_programs() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int64]
    tensors = [torch.full((2, i % 5), float(i)).to(dtypes[i % 4]) for i in range(148)]
    on_device = [t.to("jax") for t in tensors]
    before = jaxtorch.compile_count()
    torch._foreach_mul_(on_device, 2)
    compiled = jaxtorch.compile_count()
    assert compiled <= before + 3
    torch._foreach_mul_(on_device, 3)
    torch._foreach_mul_(tensors, 6)
    assert jaxtorch.compile_count() == compiled
    for a, e in zip(on_device, tensors, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_numbers_in_a_list_are_operands() -> None:
    tensors = [torch.ones(2, device="jax") for _ in range(3)]
    torch._foreach_add_(tensors, [1.0, 2.0, 3.0])
    before = jaxtorch.compile_count()
    torch._foreach_add_(tensors, [4.0, 5.0, 6.0])
    assert jaxtorch.compile_count() == before
    assert [t[0].item() for t in tensors] == [6.0, 8.0, 10.0]


def test_copies_between_devices() -> None:
    targets = [torch.zeros(2, device="jax"), torch.zeros(3, device="jax")]
    torch._foreach_copy_(targets, [torch.ones(2), torch.full((3,), 2.0, device="jax")])
    assert targets[0].tolist() == [1, 1]
    assert targets[1].tolist() == [2, 2, 2]


def test_one_tensor_written_as_a_view_of_another() -> None:
    base = torch.zeros(4, device="jax")
    torch._foreach_add_([base[:2], base[2:]], [1.0, 2.0])
    assert base.tolist() == [1, 1, 2, 2]


def test_clip_grad_norm() -> None:
    on_cpu = [torch.ones(3, requires_grad=True), torch.ones(2, 2, requires_grad=True)]
    on_device = [p.detach().to("jax").requires_grad_() for p in on_cpu]
    for parameters in (on_cpu, on_device):
        for p in parameters:
            p.grad = torch.full_like(p, 3.0)
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        torch.testing.assert_close(norm.cpu(), torch.tensor(9 * 7.0).sqrt())
    for a, e in zip(on_device, on_cpu, strict=True):
        torch.testing.assert_close(a.grad.cpu(), e.grad)
