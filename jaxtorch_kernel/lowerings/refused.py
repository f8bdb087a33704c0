"""Kinds of dtypes that torch refuses for an operator, although JAX would accept them.

XLA adds booleans and orders complex numbers; torch raises. An operator is listed if neither the CPU nor cuda has a
kernel for the kind according to PyTorch's operator database; `tests/lowerings/test_refused_dtypes.py` compares the
device with the CPU, entry by entry. When a program is built for a listed kind, the CPU kernel is tried
(`dispatch/meta.py`): if it accepts the dtype, the program is built (`upsample_nearest2d` takes uint8 but no other
integers); otherwise its error is raised.

Half types are not listed: the device computes them in float32 if torch has no kernel.
"""

from __future__ import annotations

_BOOL = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _embedding_bag _embedding_bag_forward_only
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _trilinear
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
    _upsample_nearest_exact3d addbmm addcdiv addcmul addmm addmv argmax argmin baddbmm bernoulli bitwise_left_shift
    bitwise_right_shift bmm bucketize ceil clamp clamp_max clamp_min convolution dot floor gelu grid_sampler_2d
    grid_sampler_3d hardshrink hardsigmoid hardswish hypot igamma igammac index_reduce kthvalue median mish mm
    multilabel_margin_loss_forward mv mvlgamma nanmedian native_group_norm nextafter pow reflection_pad1d
    reflection_pad2d reflection_pad3d relu remainder round rrelu_with_noise std std_mean threshold topk trunc
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d var var_mean vdot
"""

_INTEGER = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _embedding_bag _embedding_bag_forward_only
    _histogramdd_bin_edges _log_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _softmax _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_max_pool2d
    adaptive_max_pool3d bernoulli frac gelu grid_sampler_2d grid_sampler_3d hardshrink hardsigmoid hardswish
    histogram huber_loss hypot igamma igammac im2col lerp log_sigmoid_forward logaddexp logaddexp2 logcumsumexp
    max_pool2d_with_indices_backward max_unpool2d max_unpool3d mish multi_margin_loss multilabel_margin_loss_forward
    native_group_norm nextafter nll_loss2d_forward nll_loss_forward round rrelu_with_noise smooth_l1_loss
    soft_margin_loss softplus std std_mean upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean
"""

_COMPLEX = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _batch_norm_with_update _embedding_bag _embedding_bag_forward_only
    _histogramdd_bin_edges _log_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax _softmax _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d amax amin
    aminmax argmax argmin atan2 avg_pool2d avg_pool3d binary_cross_entropy binary_cross_entropy_with_logits celu
    clamp clamp_max clamp_min cummax cummin elu fmax fmin fractional_max_pool2d fractional_max_pool3d ge glu gt
    hardshrink hardtanh hash_tensor heaviside histc histogram huber_loss index_reduce kthvalue le leaky_relu
    log_sigmoid_forward lt max maximum median min minimum mish mode mse_loss multi_margin_loss
    multilabel_margin_loss_forward nanmedian native_group_norm nll_loss2d_forward nll_loss_forward relu round
    rrelu_with_noise scatter_reduce sign signbit smooth_l1_loss softplus softshrink sort special_bessel_j0
    special_bessel_j1 special_entr special_erfcx special_modified_bessel_k0 special_modified_bessel_k1
    special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py
    threshold topk upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d xlogy
"""

_KINDS = {"b": _BOOL.split(), "i": _INTEGER.split(), "c": _COMPLEX.split()}

# Operator without its overload -> kinds of dtypes (`promote.kind_of`) that the CPU kernel checks.
REFUSED = {
    name: "".join(kind for kind, names in _KINDS.items() if name in names)
    for name in sorted({name for names in _KINDS.values() for name in names})
}
