"""Faults that PyTorch's device-generic tests found (`make torch-suite`), each as a table against the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import jaxtorch


def _both(call: Callable[[str], Any]) -> list[Any]:
    """What a call gives on the CPU and on the device: values, or the kind and the text of the error."""
    found: list[Any] = []
    for device in ("cpu", "jax"):
        try:
            found.append(call(device).tolist())
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def _bools(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bool, device=device)


def _ints(device: str, *values: int) -> torch.Tensor:
    return torch.tensor(values, device=device)


# -- sums and products of booleans at indices: logical or, logical and -------------------------------------------------

AT_INDICES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_put": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "put": lambda x, i, v: x.put(i, v, accumulate=True),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i, v),
    "scatter, add": lambda x, i, v: x.scatter(0, i, v, reduce="add"),
    "scatter, multiply": lambda x, i, v: x.scatter(0, i, v, reduce="multiply"),
    **{
        f"scatter_reduce, {how}, {include}": lambda x, i, v, how=how, include=include: (
            x.scatter_reduce(0, i, v, how, include_self=include)
        )
        for how in ("sum", "prod", "amax", "amin")
        for include in (True, False)
    },
}


@pytest.mark.filterwarnings("ignore:The reduce argument")
@pytest.mark.parametrize("name", AT_INDICES)
def test_booleans_at_repeated_indices(name: str) -> None:
    def call(device: str) -> torch.Tensor:
        return AT_INDICES[name](
            _bools(device, 0, 1, 1, 0), _ints(device, 2, 0, 0, 1), _bools(device, 0, 1, 0, 1)
        )

    cpu, jax = _both(call)
    assert jax == cpu
    assert isinstance(cpu, list)


# -- errors, and which of two comes first ------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("values", [[], [1, 2, 3], [1.0, 2.0, 3.0, 4.0], [1.0]])
def test_a_wrong_shape_is_said_before_a_wrong_dtype(masked: bool, values: list[float]) -> None:
    def call(device: str) -> torch.Tensor:
        x = torch.arange(4, device=device)
        index = x >= 0 if masked else x.clone()
        return x.index_put_((index,), torch.tensor(values, device=device))

    cpu, jax = _both(call)
    assert jax == cpu


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.nonzero(_bools(d, 0, 1), out=torch.empty(0, device=d)),
        lambda d: torch.masked_select(
            _ints(d, 0, 1), _bools(d, 0, 1), out=torch.empty(0, device=d)
        ),
        lambda d: torch.nonzero(_bools(d, 0, 1), out=torch.empty(0, dtype=torch.int64, device=d)),
    ],
)
def test_out_of_another_dtype_is_refused(call: Callable[[str], torch.Tensor]) -> None:
    cpu, jax = _both(call)
    assert (jax if isinstance(jax, list) else jax[0]) == (cpu if isinstance(cpu, list) else cpu[0])


@pytest.mark.parametrize("dims", [(), (0,), (-1,), (1,), (0, 0)])
def test_flip_of_a_number(dims: tuple[int, ...]) -> None:
    cpu, jax = _both(lambda d: torch.tensor(3.0, device=d).flip(dims))
    assert jax == cpu


def test_masks_of_bytes_warn_as_often_as_on_the_cpu() -> None:
    def count(device: str) -> int:
        x = torch.ones(2, 3, device=device)
        rows = torch.tensor([1, 0], dtype=torch.uint8, device=device)
        columns = torch.tensor([1, 0, 1], dtype=torch.uint8, device=device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x.index_put_((rows,), x[rows], accumulate=True)
            x[:, columns]
        assert all("torch.uint8 is now deprecated" in str(w.message) for w in caught)
        return len(caught)

    assert count("jax") == count("cpu") == 3


# -- captured gradients, against float64 -------------------------------------------------------------------------------


def _gradients(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]
) -> list[torch.Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    wave = torch.sin(torch.arange(result.numel(), dtype=torch.float64)).reshape(result.shape)
    (result * wave.to(result.device, result.dtype)).sum().backward()
    return [x.grad.cpu().double() for x in leaves if x.grad is not None]


def _random(*size: int) -> torch.Tensor:
    return torch.randn(
        size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64
    )


PRODUCTS_OF_REFLECTORS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]]
PRODUCTS_OF_REFLECTORS = {
    "householder_product": (torch.linalg.householder_product, ((5, 3), (3,))),
    "fewer scales, batched": (torch.linalg.householder_product, ((2, 5, 4), (2, 3))),
    **{
        f"ormqr, left={left}, transpose={transpose}": (
            lambda a, t, x, left=left, transpose=transpose: torch.ormqr(a, t, x, left, transpose),
            ((5, 3), (3,), (5, 2) if left else (2, 5)),
        )
        for left in (True, False)
        for transpose in (True, False)
    },
}


@pytest.mark.parametrize("name", PRODUCTS_OF_REFLECTORS)
def test_captured_gradients_of_products_of_reflectors(name: str) -> None:
    function, sizes = PRODUCTS_OF_REFLECTORS[name]
    inputs = [_random(*size) for size in sizes]
    expected = _gradients(function, inputs)
    actual = _gradients(jaxtorch.pure(function), [x.jax() for x in inputs])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("size", [(6, 3), (3, 6), (4, 4)])
@pytest.mark.parametrize("rank", [3, 2])
def test_captured_gradients_of_least_squares_of_close_singular_values(
    size: tuple[int, int], rank: int
) -> None:
    u, v = torch.linalg.qr(_random(size[0], rank)).Q, torch.linalg.qr(_random(size[1], rank)).Q
    a = u @ torch.diag(torch.tensor([1.0, 1.0 + 1e-7, 2.0], dtype=torch.float64)[:rank]) @ v.T
    b = _random(size[0], 2)
    expected = _gradients(lambda a, b: torch.linalg.pinv(a, rtol=1e-10) @ b, [a, b])

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.lstsq(a, b, rcond=1e-10, driver="gelsy").solution

    actual = _gradients(jaxtorch.pure(solve), [a.jax(), b.jax()])
    for x, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, e, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_polygamma_beside_its_poles(n: int) -> None:
    x = torch.tensor([-4.0001, -2.9999, -1.99, -1e-3, 1e-3, 0.3, 0.9, 1.0, 7.0])
    exact = torch.polygamma(n, x.double())
    actual = torch.polygamma(n, x.jax()).cpu().double()
    torch.testing.assert_close(actual, exact, rtol=2e-6, atol=0)
