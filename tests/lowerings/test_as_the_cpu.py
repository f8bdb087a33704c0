"""Cases where XLA or torch's Meta kernels differ from the CPU, which is right: ranges, layouts, masked rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")

# -- numbers that fit no integer -------------------------------------------------------------------------------------

FILLS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "masked_fill": lambda x, v: x.masked_fill(x == 0, v),
    "fill_": lambda x, v: x.fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "index_fill": lambda x, v: x.index_fill(0, torch.zeros(1, dtype=torch.int64).to(x.device), v),
    "scatter": lambda x, v: x.scatter(0, torch.zeros(1, dtype=torch.int64).to(x.device), v),
    "a subscript": lambda x, v: x.__setitem__(0, v),
}


def _error(function: Callable[[], Any]) -> tuple[type, str] | None:
    try:
        function()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", FILLS)
def test_a_number_that_does_not_fit_is_refused(name: str, dtype: torch.dtype) -> None:
    for value in (-INF, INF, NAN, 1e30, 2.5, -2.5):
        expected, actual = (
            _error(
                lambda d=d, value=value: FILLS[name](torch.zeros(2, dtype=dtype, device=d), value)
            )  # type: ignore[misc]  # a lambda's default has no type
            for d in ("cpu", "jax")
        )
        assert actual == expected, value


def test_infinity_and_nan_fit_floats() -> None:
    for value in (INF, -INF, NAN):
        filled = torch.zeros(2, dtype=torch.half, device="jax").fill_(value).cpu()
        torch.testing.assert_close(filled, torch.full((2,), value).half(), equal_nan=True)


# -- channels that come last -----------------------------------------------------------------------------------------


def _image(device: str, last: bool, channels: int = 4, dims: int = 2) -> torch.Tensor:
    size = (2, channels, 5, 6, 7)[: dims + 2]
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    image = torch.randn(size, generator=torch.Generator().manual_seed(2))
    if last:
        image = image.contiguous(memory_format=formats[dims])
    return image.to(device)


LAYERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(3, x.shape[1], 3, 3, device=x.device)),
    "conv2d of one channel": lambda x: F.conv2d(x[:, :1], torch.ones(3, 1, 3, 3, device=x.device)),
    "conv2d with groups": lambda x: F.conv2d(
        x, torch.ones(x.shape[1], 1, 2, 2, device=x.device), groups=x.shape[1]
    ),
    "conv2d without a batch": lambda x: F.conv2d(x[0], torch.ones(3, 4, 3, 3, device=x.device)),
    "a pointwise convolution": lambda x: F.conv2d(x, torch.ones(3, 4, 1, 1, device=x.device)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(
        x, torch.ones(x.shape[1], 3, 3, 3, device=x.device)
    ),
    "a channels-last weight": lambda x: F.conv2d(
        x, torch.ones(3, 4, 3, 3, device=x.device).to(memory_format=torch.channels_last)
    ),
    "reflection": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replication": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "constant padding": lambda x: F.pad(x, (1, 1, 1, 1)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0),
}


def _same_layout(function: Callable[[str], torch.Tensor]) -> None:
    expected, actual = function("cpu"), function("jax")
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_lays_its_result_out_as_the_cpu_does(name: str, last: bool) -> None:
    _same_layout(lambda device: LAYERS[name](_image(device, last)))


@pytest.mark.parametrize("last", [True, False])
def test_a_convolution_of_volumes_keeps_channels_last(last: bool) -> None:
    _same_layout(
        lambda d: F.conv3d(_image(d, last, dims=3), torch.ones(3, 4, 2, 2, 2, device=d) / 100)
    )


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradients_of_a_channels_last_convolution_are_laid_out_as_the_cpus(wanted: int) -> None:
    def gradient(device: str) -> torch.Tensor:
        leaves = (_image(device, True), torch.ones(3, 4, 3, 3, device=device))
        leaves = tuple(x.requires_grad_() for x in leaves)
        return torch.autograd.grad(F.conv2d(*leaves).sum(), leaves)[wanted]

    _same_layout(gradient)


# -- masked softmax --------------------------------------------------------------------------------------------------

HEADS = (2, 3, 4, 4)
# Kind of mask -> its shape: over scores, over padded keys, over everything.
MASKS = {0: HEADS[2:], 1: (HEADS[0], HEADS[3]), 2: HEADS, None: HEADS}


@pytest.mark.parametrize("dim", [None, -1, 1])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_masked_softmax(kind: int | None, dim: int | None, share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(HEADS, generator=generator)
    mask = torch.rand(MASKS[kind], generator=generator) < share
    expected = torch._masked_softmax(scores, mask, dim, kind)
    actual = torch._masked_softmax(scores.to("jax"), mask.to("jax"), dim, kind)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dim", [None, -1, 1])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_gradients_of_masked_softmax(kind: int | None, dim: int | None, share: float) -> None:
    """torch has them for masks of the full shape, and refuses the short ones."""
    generator = torch.Generator().manual_seed(4)
    scores, cotangent = (torch.randn(HEADS, generator=generator) for _ in range(2))
    mask = torch.rand(MASKS[kind], generator=generator) < share

    def gradient(device: str) -> torch.Tensor:
        x = scores.to(device, copy=True).requires_grad_()
        result = torch._masked_softmax(x, mask.to(device), dim, kind)
        return torch.autograd.grad(result, x, cotangent.to(device))[0].cpu()

    if mask.shape == scores.shape:
        torch.testing.assert_close(gradient("jax"), gradient("cpu"), equal_nan=True)
    else:
        expected = _error(lambda: gradient("cpu"))
        assert expected is not None
        assert _error(lambda: gradient("jax")) == expected


def test_the_gradient_of_masked_softmax_is_its_derivative() -> None:
    scores = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    scores = scores.to("jax").requires_grad_()
    mask = torch.tensor([[True, False, False, True], [False, False, True, False]]).to("jax")
    assert torch.autograd.gradcheck(lambda x: torch._masked_softmax(x, mask, 1, 2), scores)


# -- random complex numbers ------------------------------------------------------------------------------------------


def test_both_parts_of_complex_random_numbers_are_uniform() -> None:
    drawn = torch.rand(10_000, dtype=torch.complex64, device="jax").cpu()
    for part in (drawn.real, drawn.imag):
        assert part.min() >= 0
        assert part.max() < 1
        assert abs(part.mean() - 0.5) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_safe_softmax_in_another_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 2.0], [-INF, -INF]])
    expected = torch.ops.aten._safe_softmax(x, -1, dtype)
    actual = torch.ops.aten._safe_softmax(x.jax(), -1, dtype)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected)
