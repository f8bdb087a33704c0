"""Functions where a derivative has to be chosen (a kink, a tie, a pole), by family, each with a point there."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Function = Callable[[torch.Tensor], torch.Tensor]
Family = dict[str, tuple[Function, torch.Tensor]]

inf, nan = math.inf, math.nan
special = torch.special
X = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 6.0, 0.5, -0.5, 3.0, -3.0, 100.0])
PAIRS = torch.tensor([[0.0, 0, 1, -1, 2, 0, 3, -0.0], [0.0, 1, 1, -1, -2, -1, 0, 0.0]])
UNORDERED = torch.tensor([[nan, 1, nan, inf, -inf, inf], [1, nan, nan, inf, -inf, -inf]])
TIES = torch.tensor([[1.0, 3, 3, 0], [2, 2, 2, 2], [0, 0, -1, 0], [-5, 4, 4, 4]])
WITH_NAN = torch.tensor([[nan, 1, 1], [2, 2, nan], [0, -inf, inf]])
ROWS = torch.tensor([[0.0, 0, 1], [1, 2, 3], [0, 0, 0]])
IMAGE = torch.tensor([[[[1.0, 1, 2, 2], [1, 1, 2, 2], [0, 0, -1, 3], [0, 0, 3, 3]]]])
LOWEST = torch.full((1, 1, 2, 2), -inf)
A = torch.tensor([0.0, 1, 2, -1, 0.5, -0.5, 1, 3])
B = torch.tensor([0.0, 0, 1, 0, 0, 0, 1, 5])
SIGNS = torch.tensor([1.0, -1, 1, -1, 1, -1, 1, -1])
LOGITS = torch.tensor([0.0, 200, -200, 1, -100, 100, 20, -20])
TARGETS = torch.tensor([1.0, 1, 0, 0, 1, 0, 0.5, 0])


def _of(x: torch.Tensor, functions: dict[str, Function]) -> Family:
    return {name: (function, x) for name, function in functions.items()}


def _two(function: Callable[..., torch.Tensor]) -> Function:
    return lambda x: function(x[0], x[1])


def _complex(function: Function) -> Function:
    def parts(x: torch.Tensor) -> torch.Tensor:
        result = function(torch.complex(x[0], x[1]))
        return torch.view_as_real(result) if result.is_complex() else result

    return parts


def _like(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return values.to(x.device)


def _grid(mode: str, padding: str, align: bool, scale: float) -> Function:
    image = torch.arange(12.0).reshape(1, 1, 3, 4).sin()
    options: Any = {"mode": mode, "padding_mode": padding, "align_corners": align}
    return lambda g: F.grid_sample(_like(g, image), g * scale, **options)


def _identity_grid(align: bool) -> torch.Tensor:
    return F.affine_grid(torch.eye(2, 3)[None], [1, 1, 3, 4], align_corners=align)


_BUCKETS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3])
_EIGHT = torch.tensor([1.0, 1, 0, -1, 2, 2, 1, 0])


def _scattered(reduce: str, include_self: bool) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        start = torch.zeros(4, device=x.device)
        return start.scatter_reduce(0, _like(x, _BUCKETS), x, reduce, include_self=include_self)

    return run


def _columns(reduce: str) -> Function:
    index = torch.tensor([0, 1, 1, 0])
    return lambda x: (x * 1).index_reduce(1, _like(x, index), x, reduce, include_self=False)


UNARY: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in ["abs", "sign", "sgn", "sqrt", "rsqrt", "log", "reciprocal"]
    },
    **{name: getattr(torch, name) for name in ["floor", "round", "trunc", "frac", "nan_to_num"]},
    **{
        name: getattr(torch, name)
        for name in ["asin", "acos", "acosh", "atanh", "angle", "i0", "sinc"]
    },
    **{
        name: getattr(special, name)
        for name in ["entr", "erfinv", "ndtri", "i1", "i0e", "i1e", "log_ndtr"]
    },
    "logit": special.logit,
    "logit eps": partial(special.logit, eps=0.25),
    "xlogy": lambda x: special.xlogy(x, x),
    "xlogy of 0": lambda x: special.xlogy(x * 0, x),
    "xlog1py": lambda x: special.xlog1py(x, x - 1),
    "zeta": lambda x: special.zeta(torch.full_like(x, 2.0), x.abs() + 1),
    "polygamma": lambda x: special.polygamma(1, x),
    "where": lambda x: torch.where(x > 0, x.log(), 0 * x),
    "a mask times inf": lambda x: x.reciprocal() * (x > 0),
    "fmod": lambda x: torch.fmod(x, 1.0),
    "remainder": lambda x: torch.remainder(x, 1.0),
    **{f"x ** {p}": partial(torch.pow, exponent=p) for p in (0, 0.5, 1, 2, -1, 1.5, -0.5, 0.3)},
    **{f"{p} ** x": (lambda x, p=p: torch.pow(p, x)) for p in (0.0, 0.5, 1.0, 2.0)},
}

ACTIVATIONS: dict[str, Function] = {
    **{
        name: getattr(F, name)
        for name in ["relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu"]
    },
    **{name: getattr(F, name) for name in ["hardswish", "hardsigmoid", "hardtanh", "hardshrink"]},
    **{
        name: getattr(F, name)
        for name in ["softshrink", "softplus", "softsign", "logsigmoid", "mish"]
    },
    "hardtanh at 2": lambda x: F.hardtanh(x, -3.0, 2.0),
    "hardshrink at 1": lambda x: F.hardshrink(x, 1.0),
    "softshrink at 1": lambda x: F.softshrink(x, 1.0),
    "threshold": lambda x: F.threshold(x, 1.0, 20.0),
    "elu 2": lambda x: F.elu(x, 2.0),
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, device=x.device)),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp crossed": lambda x: x.clamp(1, -1),
    "clamp_min": lambda x: x.clamp_min(0),
    "clamp_max": lambda x: x.clamp_max(1),
    "clamp by tensors": lambda x: x.clamp(torch.zeros_like(x), torch.ones_like(x)),
    "clamp by one tensor": lambda x: x.clamp(torch.zeros_like(x)) + x.clamp_max(torch.ones_like(x)),
    "clamp's lower bound": lambda x: _like(x, X).clamp(x * 0),
    "clamp's upper bound": lambda x: _like(x, X).clamp_max(x * 0 + 1),
    "clamp by crossed tensors": lambda x: x.clamp(torch.ones_like(x), torch.zeros_like(x)),
    "clamp's crossed bounds": lambda x: _like(x, X).clamp(x * 0 + 1, x * 0),
    "clamp by equal numbers": lambda x: x.clamp(1, 1),
    "clamp of NaN": lambda x: (
        (x * math.nan).clamp(0, 1) + (x * math.nan).clamp(torch.zeros_like(x))
    ),
    "clamp by NaN": lambda x: x.clamp(torch.full_like(x, math.nan), torch.ones_like(x)),
    "clamp's bounds": lambda x: _like(x, X).clamp(x * 0, x * 0 + 1),
    "clamp's equal bounds": lambda x: _like(x, X).clamp(x * 0, x * 0),
}

BINARY: dict[str, Function] = {
    **{
        name: _two(getattr(torch, name)) for name in ["maximum", "minimum", "fmax", "fmin", "hypot"]
    },
    **{
        name: _two(getattr(torch, name))
        for name in ["atan2", "copysign", "fmod", "remainder", "pow"]
    },
    **{name: _two(getattr(torch, name)) for name in ["logaddexp", "logaddexp2", "dist"]},
    "pow of what is positive": lambda x: x[0].abs() ** x[1],
    "max": _two(torch.max),
}

NORMS: Family = {}
for _p in (0.5, 1, 1.5, 2, 3, inf, -inf, -0.5):
    NORMS |= {
        f"norm {_p}": (partial(torch.linalg.vector_norm, ord=_p, dim=1), ROWS),
        f"norm {_p} of ties": (partial(torch.linalg.vector_norm, ord=_p), TIES),
    }
for _p in (0.5, 1, 2, 3, inf):
    NORMS |= _of(
        ROWS,
        {
            f"cdist {_p}": lambda x, p=_p: torch.cdist(x, x.detach(), p),  # type: ignore[misc]
            f"pdist {_p}": lambda x, p=_p: F.pdist(x * 1, p),  # type: ignore[misc]
            f"normalize {_p}": lambda x, p=_p: F.normalize(x, p),  # type: ignore[misc]
        },
    )
NORMS |= _of(
    ROWS,
    {
        "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
        "cosine_similarity": lambda x: F.cosine_similarity(x, x.detach() + 1),
    },
)

_REDUCTIONS = [
    "max",
    "min",
    "amax",
    "amin",
    "median",
    "nanmedian",
    "prod",
    "std",
    "var",
    "logsumexp",
    "cumprod",
]
_REDUCTIONS += ["cummax", "cummin", "sort", "mode"]
_ALONG_ONE = ("logsumexp", "cumprod", "cummax", "cummin", "sort", "mode")


def _reduction(name: str, dim: int | None) -> Function:
    def run(x: torch.Tensor) -> torch.Tensor:
        result = getattr(torch, name)(x) if dim is None else getattr(torch, name)(x, dim=dim)
        return result if isinstance(result, torch.Tensor) else result[0]

    return run


REDUCTIONS: Family = {
    f"{name} along {dim} of {word}": (_reduction(name, dim), x)
    for name in _REDUCTIONS
    for word, x in {"ties": TIES, "zeros": torch.zeros(3, 3)}.items()
    for dim in ((0,) if name in _ALONG_ONE else (None, 1))
}
# Not `mode`: of several NaN it takes another one.
REDUCTIONS |= {
    f"{name} along {dim} of nan": (_reduction(name, dim), WITH_NAN)
    for name in ["max", "min", "amax", "amin", "median", "nanmedian", "std", "var"]
    for dim in (None, 0, 1)
}
REDUCTIONS |= {
    "std of one": (torch.std, torch.ones(1)),
    "logsumexp of -inf": (partial(torch.logsumexp, dim=1), torch.tensor([[-inf, 1], [-inf, -inf]])),
    "quantile": (partial(torch.quantile, q=0.5), torch.tensor([1.0, 1, 2, 2])),
    **{
        f"scatter_reduce {reduce} {include}": (_scattered(reduce, include), _EIGHT)
        for reduce in ("amax", "amin", "prod", "mean")
        for include in (True, False)
    },
    **{f"index_reduce {reduce}": (_columns(reduce), TIES) for reduce in ("amax", "amin", "prod")},
}

POOLS: Family = _of(
    IMAGE,
    {
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "max_pool2d overlapping": lambda x: F.max_pool2d(x, 3, 1, 1),
        "max_pool2d dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
        "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
        "lp_pool2d": lambda x: F.lp_pool2d(x * 0, 2, 2),
        "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    },
)
POOLS |= {
    "max_pool2d of -inf": (lambda x: F.max_pool2d(x, 2, 1, 1), LOWEST),
    "embedding_bag": (
        lambda w: F.embedding_bag(
            torch.tensor([[0, 1], [1, 2]], device=w.device), w, mode="max", padding_idx=None
        ),
        torch.tensor([[1.0, 2], [1, 3], [1, 3]]),
    ),
}
for _mode, _padding, _align in (
    ("bilinear", "border", True),
    ("bilinear", "reflection", True),
    ("bilinear", "zeros", False),
    ("nearest", "border", True),
):
    POOLS |= _of(
        _identity_grid(_align),
        {
            f"grid_sample {_mode} {_padding}": _grid(_mode, _padding, _align, 1),
            f"grid_sample outside {_mode} {_padding}": _grid(_mode, _padding, _align, 1.5),
        },
    )

LOSSES: Family = _of(
    A,
    {
        "l1": lambda x: F.l1_loss(x, _like(x, B)),
        "smooth_l1": lambda x: F.smooth_l1_loss(x, _like(x, B)),
        "smooth_l1 0": lambda x: F.smooth_l1_loss(x, _like(x, B), beta=0.0),
        "huber": lambda x: F.huber_loss(x, _like(x, B), delta=0.5),
        "margin_ranking": lambda x: F.margin_ranking_loss(x, _like(x, B), _like(x, SIGNS)),
        "hinge_embedding": lambda x: F.hinge_embedding_loss(x, _like(x, SIGNS)),
        "soft_margin": lambda x: F.soft_margin_loss(x, _like(x, SIGNS)),
    },
)
LOSSES |= _of(
    LOGITS,
    {
        "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), _like(x, TARGETS)),
        "with weights": lambda x: F.binary_cross_entropy(
            x.sigmoid(), _like(x, TARGETS), weight=_like(x, TARGETS)
        ),
        "with logits": lambda x: F.binary_cross_entropy_with_logits(x, _like(x, TARGETS)),
        "kl_div": lambda x: F.kl_div(x, _like(x, TARGETS), reduction="sum"),
    },
)
LOSSES |= {
    "target of binary_cross_entropy": (
        lambda t: F.binary_cross_entropy(torch.tensor([0.0, 0.5, 1, 0.2], device=t.device), t),
        torch.tensor([0.0, 1, 0, 0.5]),
    ),
    "target of kl_div": (lambda t: F.kl_div(_like(t, A), t, reduction="sum"), TARGETS),
    "multi_margin": (
        lambda x: F.multi_margin_loss(x, torch.arange(4, device=x.device)),
        TIES.clamp(0, 1),
    ),
    "triplet_margin": (lambda x: F.triplet_margin_loss(x, x.detach(), x.detach() + 1), TIES),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([0, 1], device=x.device)),
        torch.tensor([[0.0, -inf, 1], [1, 2, -inf]]),
    ),
}

FAMILIES: dict[str, Family] = {
    "unary": _of(X[:-1], UNARY),
    "activations": _of(X, ACTIVATIONS),
    "binary": _of(PAIRS, BINARY),
    "unordered": _of(UNORDERED, {k: BINARY[k] for k in ("maximum", "minimum", "fmax", "fmin")}),
    "complex": _of(
        PAIRS, {n: _complex(getattr(torch, n)) for n in ("abs", "angle", "sgn", "sqrt", "prod")}
    ),
    "norms": NORMS,
    "reductions": REDUCTIONS,
    "pools and grids": POOLS,
    "losses": LOSSES,
}
