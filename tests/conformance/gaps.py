"""The one list of known gaps: entry -> kind of check -> reason.

A gap that is listed must fail, and a failure that is not listed is an error: so the list cannot rot. `make conformance`
checks all of it, `make test` the part that its sample meets. Differences that are the CPU's own rounding are not gaps
(`comparison.py`).
"""

from __future__ import annotations

import torch

_SPARSE = "the result or an input is sparse, and XLA has dense tensors only"
_TIES = (
    "torch does not specify the order of equal values: the CPU's unstable sort differs from its stable "
    "one, and the device's sort is stable"
)
_STATISTICS = (
    "the CPU kernel returns mean and deviation as bfloat16; the device keeps float32, as torch's Meta and "
    "cuda kernels do"
)
_INDEX = 'an out-of-range index raises only under `jaxtorch.config(check="indices")` (docs/differences.md)'
_NO_EIG = "XLA has no eigenvalues of general matrices for a TPU"

# Captured code that needs values, by torch's own mark: counted apart.
_SIZE = "the size of the result depends on values, and the sizes of a captured program are fixed"
_VALUE = "a Python value is asked for, and a captured program has none yet"
_RANK = "with the driver gelsd, the rank decides whether residuals are returned"
_SPLITS = "torch wants split points on the CPU, and captured code takes its arguments to the device"

_PURE = ("pure", "pure-backward")
_CAPTURED = ("pure", "pure-backward", "tpu", "tpu-backward")
_FORWARD = ("pure", "tpu")

GAPS: dict[str, dict[str, str]] = {
    "_batch_norm_with_update": {"bfloat16": _STATISTICS},
    "_native_batch_norm_legit": {"bfloat16": _STATISTICS},
    "addbmm": {
        "in-place": "the CPU resizes a self that broadcasts, which in-place operators elsewhere refuse",
    },
    "allclose": dict.fromkeys(_FORWARD, _VALUE),
    "argsort": {"bfloat16": _TIES},
    "argwhere": dict.fromkeys(_FORWARD, _SIZE),
    "as_strided_scatter": {
        "pure-backward": "torch's gradient of self ignores that its first element is overwritten; the device gives 0"
    },
    "bincount": dict.fromkeys(_FORWARD, _SIZE),
    "cov": dict.fromkeys(_PURE, "torch checks the values of weights"),
    "equal": dict.fromkeys(_FORWARD, _VALUE),
    "gather": {"errors": _INDEX},
    "item": dict.fromkeys(_FORWARD, _VALUE),
    "kthvalue": {"int64": _TIES},
    "linalg.eig": dict.fromkeys(("tpu", "tpu-backward"), _NO_EIG),
    "linalg.eigh": {
        "out": "the eigenvectors' signs are LAPACK's choice, and jaxlib's LAPACK chooses otherwise than torch's"
    },
    "linalg.eigvals": dict.fromkeys(("tpu", "tpu-backward"), _NO_EIG),
    "linalg.lstsq": dict.fromkeys(_PURE, _RANK),
    "linalg.lstsq.grad_oriented": dict.fromkeys(_PURE, _RANK),
    "masked_select": dict.fromkeys(_CAPTURED, _SIZE),
    "mode": {"int64": _TIES, "bfloat16": _TIES},
    "narrow": dict.fromkeys(_PURE, "torch reads a start that is a tensor"),
    "narrow_copy": {
        "errors": "for a wrong dim the CPU raises RuntimeError in `narrow_copy` and IndexError in `narrow`, "
        "and so does the device"
    },
    "native_batch_norm": {"bfloat16": _STATISTICS},
    "native_layer_norm": {"bfloat16": _STATISTICS},
    "nn.functional.gaussian_nll_loss": dict.fromkeys(
        _CAPTURED, "torch's own code asks whether a variance is negative"
    ),
    "nn.functional.one_hot": dict.fromkeys(
        _FORWARD, "without num_classes the size of the result depends on values"
    ),
    "nonzero": dict.fromkeys(_FORWARD, _SIZE),
    "repeat_interleave": dict.fromkeys(_PURE, _SIZE),
    "scatter": {"errors": _INDEX},
    "scatter_add": {"errors": _INDEX},
    "sort": {"bfloat16": _TIES},
    "sparse.mm.reduce": dict.fromkeys(("forward", "bfloat16", "pure", "tpu"), _SPARSE),
    "sparse.sampled_addmm": {"out": _SPARSE},
    "tensor_split": dict.fromkeys(_CAPTURED, _SPLITS),
    "to_sparse": dict.fromkeys(
        ("forward", "int64", "bfloat16", "backward", "non-contiguous", *_CAPTURED), _SPARSE
    ),
    "topk": {"int64": _TIES, "bfloat16": _TIES},
    "unique": dict.fromkeys(_FORWARD, _SIZE),
    "unique_consecutive": dict.fromkeys(_FORWARD, _SIZE),
}

if hasattr(torch.linalg, "polar"):  # since torch 2.15
    _NO_LOWERING = "it has no lowering: it runs on the CPU, and captured code refuses it"
    _KINDS = ("out", "pure", "pure-backward", "tpu")
    GAPS["linalg.polar"] = dict.fromkeys(_KINDS, _NO_LOWERING)
