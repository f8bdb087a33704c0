"""`torch.autocast("jax", dtype)`: which operators run in the lower precision, in float32, or in the widest dtype.

The lists are those that torch documents for cuda. A kernel on the key `AutocastPrivateUse1` casts the operator's
floating-point arguments on the device (except float64) and calls the operator again below that key, so that gradients
pass through the casts. Operators in none of the lists run in the dtypes of their arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch

from ..base import torch_private as private

_KEY = private.DispatchKeySet(private.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]  # torch's stub lacks it


Kernel = Callable[..., object]
Args = tuple[object, ...]
Kwargs = dict[str, object]


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LOWER_PRECISION = _names("""
    _convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm
    mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell
    _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell lstm.input lstm.data
    gru.input gru.data rnn_tanh.input rnn_tanh.data rnn_relu.input rnn_relu.data
    _scaled_dot_product_flash_attention scaled_dot_product_attention
""")

FLOAT32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity poisson_nll_loss
    cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss
    huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d
    _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa
""")
if hasattr(torch.ops.aten, "linalg_matrix_sqrth"):  # since torch 2.15
    FLOAT32 += ("linalg_matrix_sqrth",)

# These take a `dtype`. Setting it, where the caller gave none, is better than casting the input.
FLOAT32_BY_DTYPE = _names("""
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
    linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
""")

WIDEST = _names("""
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add
""")


def _eligible(value: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "jax"
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def _cast(value: object, dtype: torch.dtype) -> object:
    if _eligible(value):
        return value.to(dtype)
    if isinstance(value, list | tuple):
        return type(value)([_cast(item, dtype) for item in value])
    return value


def _below(op: Kernel, args: Args, kwargs: Kwargs) -> object:
    with private.below_key(_KEY):
        return op(*args, **kwargs)


def _cast_and_call(op: Kernel, choose: Callable[[Args, Kwargs], torch.dtype]) -> Kernel:
    def kernel(*args: object, **kwargs: object) -> object:
        with private.below_key(_KEY):
            dtype = choose(args, kwargs)
            return op(
                *[_cast(v, dtype) for v in args], **{k: _cast(v, dtype) for k, v in kwargs.items()}
            )

    return kernel


def _lower(args: Args, kwargs: Kwargs) -> torch.dtype:
    return torch.get_autocast_dtype("jax")


def _float32(args: Args, kwargs: Kwargs) -> torch.dtype:
    return torch.float32


def _leaves(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _widest(args: Args, kwargs: Kwargs) -> torch.dtype:
    given = [v for v in _leaves([*args, *kwargs.values()]) if _eligible(v)]
    if any(v.dtype == torch.float32 for v in given):
        return torch.float32
    return torch.get_autocast_dtype("jax")


def _set_dtype(op: torch._ops.OpOverload) -> Kernel:
    names = [a.name for a in op._schema.arguments]
    position = names.index("dtype")

    def kernel(*args: object, **kwargs: object) -> object:
        given = args[position] if len(args) > position else kwargs.get("dtype")
        if given is None and _eligible(args[0]):
            if len(args) > position:
                args = (*args[:position], torch.float32, *args[position + 1 :])
            else:
                kwargs = {**kwargs, "dtype": torch.float32}
        return _below(op, args, kwargs)

    return kernel


def _norm(self: torch.Tensor, p: object = 2, *dims: object) -> object:
    """`norm` takes a `dtype` only in other overloads, so call those."""
    dtype: Kwargs = {"dtype": torch.float32} if _eligible(self) else {}
    if not dims:
        op = torch.ops.aten.norm.ScalarOpt_dtype if dtype else torch.ops.aten.norm.Scalar
        return _below(op, (self, p), dtype)
    if len(dims) == 1:
        dims = (*dims, False)
    op = torch.ops.aten.norm.ScalarOpt_dim_dtype if dtype else torch.ops.aten.norm.ScalarOpt_dim
    return _below(op, (self, p, *dims), dtype)


def _binary_cross_entropy(*args: object, **kwargs: object) -> object:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Many models use a "
        "sigmoid layer right before the binary cross entropy layer. In this case, combine the two layers using "
        "torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are safe to "
        "autocast."
    )


_libraries: list[torch.library.Library] = []  # an implementation lives as long as its library


def install() -> None:
    """Register a kernel for each listed operator; all other operators run unchanged."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    _libraries.extend([everything, library])
    for names, make in (
        (LOWER_PRECISION, lambda op: _cast_and_call(op, _lower)),
        (FLOAT32, lambda op: _cast_and_call(op, _float32)),
        (WIDEST, lambda op: _cast_and_call(op, _widest)),
        (FLOAT32_BY_DTYPE, _set_dtype),
    ):
        for name in names:
            _register(library, name, make)
    for name in ("norm.Scalar", "norm.ScalarOpt_dim"):
        _register(library, name, lambda op: _norm)
    _register(library, "binary_cross_entropy", lambda op: _binary_cross_entropy)


def _register(
    library: torch.library.Library, name: str, make: Callable[[torch._ops.OpOverload], Kernel]
) -> None:
    op = private.overload(name)
    if op is not None:
        library.impl(name, make(op), "AutocastPrivateUse1")
