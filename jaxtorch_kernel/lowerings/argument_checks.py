"""Operators whose Meta kernels accept invalid arguments, and whose CPU kernels check them (`dispatch/cpu_errors.py`).

Operators are listed by name, without overload and without the underscore of the in-place form. An operator is listed
if PyTorch's samples, with one argument made invalid, show that the CPU kernel raises and the Meta kernel does not. An
operator is not listed if its CPU kernel rejects the zeros used in place of values, is slow, or crashes on invalid
arguments.
"""

from __future__ import annotations

# Samplers: the CPU kernels check their numbers, not their shapes, and are called with empty tensors.
_EMPTY = """
    bernoulli cauchy exponential geometric log_normal normal normal_functional randint randint_like random uniform
"""

# Checked for each key and each number.
_ALWAYS = """
    _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _softmax_backward_data
    bucketize cummax cummin elu_backward histc histogram index_add index_copy index_fill index_reduce
    index_select leaky_relu_backward masked_scatter multi_margin_loss multilabel_margin_loss_forward
    nll_loss2d_forward nll_loss_forward put renorm rrelu_with_noise
    rrelu_with_noise_backward searchsorted smooth_l1_loss soft_margin_loss take
"""

# Checked only if the dtypes of the operands differ, because these kernels are slow.
_SAME_DTYPE = """
    _cdist_forward _trilinear addbmm addmm addmv addr baddbmm binary_cross_entropy complex heaviside linalg_cross
    linalg_householder_product max_unpool2d max_unpool3d
    native_layer_norm ormqr polar
"""

EMPTY, ALWAYS, SAME_DTYPE = (frozenset(names.split()) for names in (_EMPTY, _ALWAYS, _SAME_DTYPE))
