"""Units: how a number is rounded and written, in every sentence of the engine and every form of every view.

`SCALES` is the only table of units. The live forms use it too, because `scripts/view_types.py` writes it into
`js/src/generated.ts`. `js/test/units.json` holds cases that the tests of both sides check.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

Unit = Literal[
    "text", "code", "number", "count", "seconds", "nanoseconds", "bytes", "amount", "share"
]

# The steps of a unit, ascending, as (symbol, multiple of the base unit). Values in the first step have no decimals.
SCALES: dict[str, tuple[tuple[str, float], ...]] = {
    "nanoseconds": (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)),
    "bytes": tuple((unit, 1024.0**i) for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))),
    "amount": (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)),
}


def written(value: object, unit: Unit = "text") -> str:
    """A value of a table as text, in its unit; "" for None.

    Example:
        >>> from jaxtorch.base.units import written
        >>> written(1234567, "count"), written(0.0021, "seconds"), written(None, "bytes"), written("f")
        ('1,234,567', '2.10 ms', '', 'f')
    """
    if value is None:
        return ""
    if unit in ("text", "code", "number") or not isinstance(value, int | float):
        return str(value)
    if unit == "count":
        return f"{math.floor(value + 0.5):,}"
    if unit == "share":
        return f"{_rounded(100 * value, 1)} %"
    if unit == "seconds":
        return _scaled(value * 1e9, "nanoseconds")
    return _scaled(value, unit)


def duration(nanoseconds: float) -> str:
    """A time with three significant digits.

    Example:
        >>> from jaxtorch.base.units import duration
        >>> duration(0), duration(950), duration(12_345), duration(1_234_567), duration(2.5e9)
        ('0', '950 ns', '12.3 µs', '1.23 ms', '2.50 s')
    """
    return written(nanoseconds, "nanoseconds")


def amount(number: float) -> str:
    """A count with three significant digits.

    Example:
        >>> from jaxtorch.base.units import amount
        >>> amount(0), amount(17), amount(268_435_456), amount(1.5e12)
        ('0', '17', '268 M', '1.50 T')
    """
    return written(number, "amount")


def size(count: float) -> str:
    """A number of bytes with three significant digits.

    Example:
        >>> from jaxtorch.base.units import size
        >>> size(0), size(17), size(1536), size(3 * 2**30)
        ('0', '17 B', '1.50 KiB', '3.00 GiB')
    """
    return written(count, "bytes")


def share(part: float, whole: float) -> str:
    """A share in percent.

    Example:
        >>> from jaxtorch.base.units import share
        >>> share(1, 3), share(0, 3), share(1, 0)
        ('33.3 %', '0.0 %', '')
    """
    return written(part / whole, "share") if whole else ""


def counted(number: int, what: str, plural: str = "") -> str:
    """A number with a noun in the singular or plural; the plural may be given.

    Example:
        >>> from jaxtorch.base.units import counted
        >>> counted(1, "array"), counted(1200, "array")
        ('1 array', '1,200 arrays')
    """
    return f"{written(number, 'count')} {what if number == 1 else plural or what + 's'}"


def _scaled(number: float, scale: str) -> str:
    if not number:
        return "0"
    steps = SCALES[scale]
    unit, step = steps[0]
    for larger, start in steps[1:]:
        if abs(number) >= start:
            unit, step = larger, start
    value = number / step
    decimals = 0 if unit == steps[0][0] or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{_rounded(value, decimals)} {unit}".rstrip()


def _rounded(value: float, decimals: int) -> str:
    """A number with this many decimals. A tie rounds away from zero, as in JavaScript's `toFixed`."""
    if not math.isfinite(value):
        return str(value)
    return str(Decimal(value).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
