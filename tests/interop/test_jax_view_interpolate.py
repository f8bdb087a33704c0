"""`F.interpolate` under `jax_view`, in every mode and under JAX's transforms, against torch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxtorch import jax_view, to_jax

torch.manual_seed(0)
IMAGE = torch.randn(2, 3, 7, 6)
MODES: list[dict[str, Any]] = [
    {"mode": "nearest"},
    {"mode": "area"},
    *({"mode": m, "align_corners": c} for m in ("bilinear", "bicubic") for c in (False, True)),
    *({"mode": m, "antialias": True} for m in ("bilinear", "bicubic")),
]
SIZES: list[dict[str, Any]] = [{"size": (3, 9)}, {"size": (1, 1)}, {"scale_factor": (0.5, 1.7)}]
TRANSFORMS: dict[str, Callable[[Any, jax.Array], Any]] = {
    "eager": lambda f, x: f(x),
    "jit": lambda f, x: jax.jit(f)(x),
    "vmap": lambda f, x: jax.jit(jax.vmap(f))(x[None])[0],
}


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(mode: dict[str, Any], size: dict[str, Any]) -> None:
    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, **size, **mode)

    image, array = IMAGE.clone().requires_grad_(), to_jax(IMAGE)
    expected = resized(image)
    for transform in TRANSFORMS.values():
        np.testing.assert_allclose(
            transform(jax_view(resized), array), expected.detach(), atol=1e-5
        )
    expected.square().sum().backward()
    assert image.grad is not None
    gradient = jax.grad(lambda x: (jax_view(resized)(x) ** 2).sum())(array)
    np.testing.assert_allclose(gradient, image.grad, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES[-2:], ids=str)
def test_dtypes_and_channels_last(dtype: torch.dtype, mode: dict[str, Any]) -> None:
    image = (IMAGE * 40 + 100).to(dtype)

    def resized(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.contiguous(memory_format=torch.channels_last), (4, 9), **mode)

    wide = image.float() if dtype is torch.bfloat16 else image  # which the CPU lacks here
    expected = resized(wide).double().numpy()
    found = jax.jit(jax_view(resized))(to_jax(image))
    tolerance = {torch.uint8: 0, torch.bfloat16: 0.02}.get(dtype, 1e-5)
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance
    )
    assert found.dtype == jnp.dtype(jax.dtypes.canonicalize_dtype(to_jax(image).dtype))
