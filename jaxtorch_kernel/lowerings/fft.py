"""Fourier transforms: the three operators that underlie `torch.fft`, `stft` and `istft`.

XLA transforms up to three dimensions at a time, and the last of them may be real; further dimensions follow in complex
steps. torch's `normalization` is 0 for none, 1 for 1/sqrt(n) and 2 for 1/n, in both directions; the names of these in
jax.numpy depend on the direction.
"""

from __future__ import annotations

import jax.numpy as jnp

from .registry import lower
from .types import Array

_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


def _complex(x: Array, dims: list[int], normalization: int, forward: bool) -> Array:
    """The complex transform over `dims`."""
    transform = jnp.fft.fftn if forward else jnp.fft.ifftn
    norm = (_FORWARD if forward else _INVERSE)[normalization]
    for i in range(0, len(dims), 3):
        x = transform(x, axes=dims[i : i + 3], norm=norm)
    return x


@lower("_fft_c2c")
def fft_c2c(self: Array, dim: list[int], normalization: int, forward: bool) -> Array:
    return _complex(self, dim, normalization, forward)


@lower("_fft_r2c")
def fft_r2c(self: Array, dim: list[int], normalization: int, onesided: bool) -> Array:
    if not onesided:
        dtype = jnp.result_type(self.dtype, jnp.complex64)
        return _complex(self.astype(dtype), dim, normalization, True)
    *rest, last = dim
    half = jnp.fft.rfft(self, axis=last, norm=_FORWARD[normalization])
    return _complex(half, rest, normalization, True)


@lower("_fft_c2r")
def fft_c2r(self: Array, dim: list[int], normalization: int, last_dim_size: int) -> Array:
    *rest, last = dim
    half = _complex(self, rest, normalization, False)
    return jnp.fft.irfft(half, n=last_dim_size, axis=last, norm=_INVERSE[normalization])
