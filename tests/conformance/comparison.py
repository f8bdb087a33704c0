"""When a result on the device agrees with the CPU's.

Tolerances are torch's own: `torch.testing.assert_close`'s for the dtype, widened only by the overrides that the entry
itself declares for torch's `TestCommon`. Where a result differs by more, the CPU's own rounding may be the reason. Then
float64 decides: the CPU runs the sample again with float64 for each narrower dtype, and the device's result agrees if
each element is within the tolerance of the float64 result, or off from it by at most `FACTOR` times the largest error
of the CPU's own elements. Of those, only elements count that are at most ten times as large as this one or the median:
the rounding of a huge element, near a pole say, excuses no small one. Where the CPU gives no finite number, or float64
gives none, or where the CPU's error is more than a tenth (the sign of an eigenvector), nothing is excused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.opinfo.core import OpInfo

from .database import WIDE

FACTOR = 2.0  # one bit
REACH = 10.0


def tolerance(op: OpInfo, dtype: torch.dtype) -> dict[str, float]:
    """The widest override that the entry declares for TestCommon, or nothing."""
    widest: dict[str, float] = {}
    for decorator in op.decorators:
        if getattr(decorator, "cls_name", None) not in ("TestCommon", None):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                t = inner.d[dtype]
                widest["atol"] = max(widest.get("atol", 0.0), t.atol)
                widest["rtol"] = max(widest.get("rtol", 0.0), t.rtol)
    return widest


def compare(
    actual: Any,
    expected: Any,
    values: bool,
    exact: Callable[[], Any] | None = None,
    **tolerances: float,
) -> None:
    """Raise AssertionError where they differ.

    Args:
        values: whether the values are compared too, beside structure, shapes and dtypes.
        exact: what gives the float64 result, as nested as the expected one.
        tolerances: `atol` and `rtol`, if not those of the dtype.
    """
    wide: list[Any] | None = None
    for i, (a, e) in enumerate(list(_pairs(actual, expected))):
        if not values:
            continue
        try:
            a = a.cpu() if isinstance(a, torch.Tensor) else a
            torch.testing.assert_close(a, e, equal_nan=True, **tolerances)
        except AssertionError:
            if exact is None or not isinstance(e, torch.Tensor) or e.dtype not in WIDE:
                raise
            wide = list(_leaves(exact())) if wide is None else wide
            if not as_near_to_float64(a, e, wide[i], **tolerances):
                raise


def as_near_to_float64(
    actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, **tolerances: float
) -> bool:
    """Whether a result is as near to float64's as the CPU's is, as the text above says.

    Example:
        The CPU is off by 0.001 and, in a huge element, by a tenth; this allows 0.002 in elements like the first two.

        >>> exact = torch.tensor([1.0, 2.0, 1e9], dtype=torch.float64)
        >>> cpu = torch.tensor([1.0, 2.001, 1.1e9])
        >>> as_near_to_float64(torch.tensor([1.0019, 2.0, 1.1e9]), cpu, exact)
        True
        >>> as_near_to_float64(torch.tensor([1.003, 2.0, 1e9]), cpu, exact)
        False
    """
    if exact.shape != expected.shape or exact.dtype != WIDE[expected.dtype]:
        return False
    rtol, atol = default_tolerances(expected.dtype)
    rtol, atol = tolerances.get("rtol", rtol), tolerances.get("atol", atol)
    actual, expected, exact = (t.to(exact.dtype).reshape(-1) for t in (actual, expected, exact))
    finite = exact.isfinite()
    if not torch.equal(actual[~finite].nan_to_num(), exact[~finite].nan_to_num()):
        return False
    actual, expected, exact = actual[finite], expected[finite], exact[finite]
    if not exact.numel():
        return True
    size = exact.abs()
    scale = size.clamp(min=float(size.median()))
    error = (expected - exact).abs()
    error = torch.where(error <= scale / 10, error, 0)
    order = size.argsort()
    largest = error[order].cummax(0).values  # among the elements up to a size
    reach = torch.searchsorted(size[order], REACH * scale, right=True) - 1
    allowed = torch.maximum(atol + rtol * size, FACTOR * largest[reach])
    return bool(((actual - exact).abs() <= allowed).all())


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple):
        for x in tree:
            yield from _leaves(x)
    elif isinstance(tree, dict):
        for x in tree.values():
            yield from _leaves(x)
    else:
        yield tree


def _pairs(actual: Any, expected: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of both, once their structure, shapes and dtypes are known to agree."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"a {type(actual)} for a tensor"
        assert actual.device.type == "jax", f"the result is on {actual.device}"
        assert actual.shape == expected.shape, f"{actual.shape} for {expected.shape}"
        assert actual.dtype == expected.dtype, f"{actual.dtype} for {expected.dtype}"
        yield actual, expected
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), f"{len(actual)} results for {len(expected)}"
        for a, e in zip(actual, expected, strict=True):
            yield from _pairs(a, e)
    elif isinstance(expected, dict):
        for k in expected:
            yield from _pairs(actual[k], expected[k])
    else:
        yield actual, expected
