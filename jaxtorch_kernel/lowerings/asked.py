"""Operators whose Meta kernels let wrong arguments pass, which the CPU's kernel is asked about (`dispatch/asked.py`).

By name, without overload and without the underscore of the form in place. An operator is listed where PyTorch's
samples with one argument made wrong showed that the CPU raises and Meta does not; `tests/conformance/mistakes.py` makes
them. None is listed whose CPU kernel raises for zeros that stand for values, or takes long.
"""

from __future__ import annotations

# Samplers: their numbers have ranges, and shapes do not matter, so that they are asked without elements.
EMPTY = frozenset(
    """
    bernoulli cauchy exponential geometric log_normal normal normal_functional randint randint_like random uniform
    """.split()
)

# Asked for each key and each number.
ALWAYS = frozenset(
    """
    _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _softmax_backward_data
    bucketize cummax cummin elu_backward histc histogram index_add index_copy index_fill index_reduce
    index_select leaky_relu_backward masked_scatter native_group_norm put renorm rrelu_with_noise
    rrelu_with_noise_backward searchsorted soft_margin_loss take
    """.split()
)

# Asked where the dtypes of the operands differ: the kernels are the costly ones.
SAME_DTYPE = frozenset(
    """
    _batch_norm_with_update _cdist_forward _native_batch_norm_legit _native_batch_norm_legit_no_training
    _trilinear addbmm addmm addmv addr baddbmm binary_cross_entropy complex heaviside linalg_cross
    linalg_householder_product max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss_forward
    native_batch_norm native_layer_norm nll_loss2d_forward nll_loss_forward ormqr polar
    """.split()
)
