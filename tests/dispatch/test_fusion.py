"""Programs without arithmetic are compiled without XLA's fusion: then no loop is compiled for a transpose."""

from __future__ import annotations

from collections.abc import Callable

import jax
import pytest
import torch
import torch.nn.functional as F

from jaxtorch.programs import stats

Tensor = torch.Tensor


def random(*size: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=generator)


def backward(f: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """The gradients of all arguments."""

    def run(*args: Tensor) -> list[Tensor]:
        leaves = [a.requires_grad_() for a in args]
        y = f(*leaves)
        return list(torch.autograd.grad(y, leaves, torch.ones_like(y)))

    return run


def strided(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, stride=2, padding=1)


def with_bias(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b)


WITHOUT_ARITHMETIC = {
    "conv1d": (F.conv1d, (2, 4, 19), (6, 4, 3)),
    "conv2d": (F.conv2d, (2, 4, 9, 11), (6, 4, 3, 3)),
    "conv3d": (F.conv3d, (1, 3, 5, 7, 6), (4, 3, 3, 3, 3)),
    "a stride": (strided, (2, 4, 9, 10), (6, 4, 3, 3)),
    "sizes of 1": (F.conv_transpose2d, (3, 1, 9, 5), (1, 4, 1, 3)),
    "a window of 1": (F.conv_transpose2d, (3, 2, 9, 5), (2, 4, 1, 1)),
    "groups": (lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 9, 7), (6, 2, 3, 3)),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2),
        (2, 4, 5, 7),
        (4, 6, 3, 3),
    ),
    "gradients": (backward(strided), (2, 4, 9, 13), (6, 4, 3, 3)),
    "gradients of a window of 1": (backward(F.conv_transpose2d), (3, 2, 9, 5), (2, 4, 1, 1)),
    "gradients with a bias": (backward(with_bias), (2, 4, 9, 14), (6, 4, 3, 3), (6,)),
    "a copy of a permuted tensor": (lambda x: x.permute(2, 0, 1).contiguous(), (5, 17, 9)),
}


def loops(part: str) -> int:
    """The loops of machine code that copy, in the newest program whose name contains `part`."""
    record = next(r for r in reversed(stats.compiled) if part in r.name)
    handle = record.handle()
    assert handle is not None
    return str(handle.executable.as_text()).count("copy_fusion")


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the options are those of XLA's CPU compiler"
)
@pytest.mark.parametrize("name", WITHOUT_ARITHMETIC)
def test_a_program_without_arithmetic_has_no_loops_that_copy(name: str) -> None:
    f, *sizes = WITHOUT_ARITHMETIC[name]
    found = f(*(random(*size).to("jax") for size in sizes))
    part = (
        "clone"
        if "copy" in name
        else "convolution_backward"
        if "gradients" in name
        else "convolution"
    )
    assert not loops(part)
    torch.testing.assert_close(
        [t.cpu() for t in found] if isinstance(found, list) else found.cpu(),
        f(*(random(*size) for size in sizes)),
    )


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the options are those of XLA's CPU compiler"
)
def test_arithmetic_is_fused() -> None:
    x = random(7, 23, 5).to("jax")
    x.permute(2, 0, 1).sigmoid()
    handle = stats.compiled[-1].handle()
    assert handle is not None
    assert str(handle.executable.as_text()).count(" fusion(") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", [4, 8])
@pytest.mark.parametrize("groups", [2, 4])
def test_convolutions_with_groups(groups: int, outputs: int, dtype: torch.dtype) -> None:
    """XLA reshapes the operands of those that no library computes, such as float64."""
    x = random(3, 4, 9, 7).to(dtype)
    weight = random(outputs, 4 // groups, 3, 3).to(dtype)

    def run(x: Tensor, w: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_(), w.detach().requires_grad_()]
        y = F.conv2d(*leaves, groups=groups)
        return [y.detach(), *torch.autograd.grad(y, leaves, y.detach())]

    found = [t.cpu() for t in run(x.to("jax"), weight.to("jax"))]
    torch.testing.assert_close(found, run(x, weight), rtol=1e-4, atol=1e-4)
