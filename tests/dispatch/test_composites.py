"""Composites as one JAX function: programs, gradients of every order, and the decomposition where it is needed."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jaxtorch.lowerings.promote import cast
from jaxtorch.operators.composite import Composite
from jaxtorch.programs import stats


def _moments(xs: Any, weight: Any, power: Any, axis: int) -> Any:
    x = xs[0] * xs[1]
    scaled = x * weight * cast(power, x.dtype)
    return jnp.sin(scaled), scaled.sum(axis), jnp.argmax(x, axis)


def _moments_decomposed(
    xs: list[torch.Tensor], weight: torch.Tensor, power: float, axis: int
) -> tuple[torch.Tensor, ...]:
    x = xs[0] * xs[1]
    scaled = x * weight * power
    return scaled.sin(), scaled.sum(axis), x.argmax(axis)


@pytest.fixture
def moments() -> Composite:
    return Composite(_moments, name="moments", decomposition=_moments_decomposed)


def inputs(device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [
        torch.randn(n, generator=generator, dtype=torch.float64) for n in ((3, 4), (3, 4), (4,))
    ]
    return [x.to(device).requires_grad_() for x in made]


def compiled(before: int) -> list[str]:
    return [c.name for c in stats.compiled[before:] if c.name.startswith("moments")]


def test_results_and_gradients_are_a_program_each(moments: Composite) -> None:
    a, b, w = inputs("jax")
    before = len(stats.compiled)
    sines, sums, places = moments([a, b], w, 1.5, 0)
    grads = torch.autograd.grad([sines, sums], [a, b, w], [sines.detach(), sums.detach()])
    assert compiled(before) == ["moments", "moments_backward"]
    assert sums.requires_grad
    assert not places.requires_grad
    x, y, v = inputs("cpu")
    expected = _moments_decomposed([x, y], v, 1.5, 0)
    weights = [e.detach() for e in expected[:2]]
    for r, e in zip((sines, sums, places), expected, strict=True):
        torch.testing.assert_close(r.cpu(), e)
    for g, e in zip(grads, torch.autograd.grad(expected[:2], [x, y, v], weights), strict=True):
        torch.testing.assert_close(g.cpu(), e)


def test_a_number_that_changes_compiles_nothing(moments: Composite) -> None:
    a, b, w = inputs("jax")
    before = len(stats.compiled)
    for power in (1.5, 2.5, 3.5):
        moments([a, b], w, power, 0)[0].sum().backward()
    assert compiled(before) == ["moments", "moments_backward"]
    moments([a, b], w, 1.5, 1)
    assert compiled(before)[2:] == ["moments"]


def test_gradients_of_any_order(moments: Composite) -> None:
    given = inputs("jax")

    def sines(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
        return moments([a, b], w, 1.5, 0)[:2]

    assert torch.autograd.gradcheck(sines, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(sines, given, fast_mode=True)
    results = []
    for device in ("jax", "cpu"):
        a, b, w = inputs(device)
        function = moments if device == "jax" else _moments_decomposed
        y = function([a, b], w, 1.5, 0)[0].sum()
        for _ in range(3):
            (y,) = torch.autograd.grad(y.sum(), b, create_graph=True)
        results.append(y.cpu())
    torch.testing.assert_close(*results)


def test_one_tensor_in_two_places(moments: Composite) -> None:
    grads = []
    for device, function in (("jax", moments), ("cpu", _moments_decomposed)):
        a, _, w = inputs(device)
        (grad,) = torch.autograd.grad(function([a, a], w, 1.5, 0)[0].sum(), a)
        grads.append(grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dependent", [False, True], ids=["leaves", "one of another"])
def test_batched_gradients_run_the_decomposition(moments: Composite, dependent: bool) -> None:
    grads = []
    for device, function in (("jax", moments), ("cpu", _moments_decomposed)):
        a, b, w = inputs(device)
        out = function([a, a.sin() if dependent else b], w, 1.5, 0)[1]
        cotangents = torch.eye(4, dtype=out.dtype).to(device)
        grads.append(torch.autograd.grad(out, [a, w], cotangents, is_grads_batched=True))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_transforms_run_the_decomposition(moments: Composite) -> None:
    a, b, w = (x.detach() for x in inputs("jax"))
    before = len(stats.compiled)
    torch.func.vmap(torch.func.grad(lambda r, s: moments([r, s], w, 1.5, 0)[0].sum()))(a, b)
    torch.func.jvp(lambda r: moments([r, b], w, 1.5, 0)[0], (a + 0,), (b + 0,))
    assert compiled(before) == []


def test_a_dispatch_mode_sees_the_decomposition(moments: Composite) -> None:
    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    a, b, w = inputs("jax")
    with Record():
        moments([a, b], w, 1.5, 0)
    assert "sin" in seen


def test_lazy_bits_are_resolved() -> None:
    double = Composite(lambda x: x * 2, name="double", decomposition=lambda x: x * 2)
    x = torch.tensor([1 + 2j], device="jax").conj()
    assert double(x).tolist() == [2 - 4j]


def test_gradients_of_complex_numbers_are_torchs() -> None:
    square = Composite(lambda x: x * x, name="square", decomposition=lambda x: x * x)
    x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, device="jax", requires_grad=True)
    assert torch.autograd.gradcheck(square, (x,))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(moments: Composite, mode: Any) -> None:
    a, b, w = inputs("jax")
    with mode():
        sines, _, _ = moments([a, b], w, 1.5, 0)
        out, _ = torch.nn.LSTM(4, 2, device="jax", dtype=torch.float64)(a[None])
    assert not sines.requires_grad
    assert not out.requires_grad
