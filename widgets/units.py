"""Formats times, bytes and counts for display."""

from __future__ import annotations

from collections.abc import Sequence


def duration(nanoseconds: float) -> str:
    """A time with three significant digits.

    Example:
        >>> from jaxtorch.widgets.units import duration
        >>> duration(0), duration(950), duration(12_345), duration(1_234_567), duration(2.5e9)
        ('0', '950 ns', '12.3 µs', '1.23 ms', '2.50 s')
    """
    return _scaled(nanoseconds, (("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)), whole="ns")


def amount(number: float) -> str:
    """A count with three significant digits.

    Example:
        >>> from jaxtorch.widgets.units import amount
        >>> amount(0), amount(17), amount(268_435_456), amount(1.5e12)
        ('0', '17', '268 M', '1.50 T')
    """
    return _scaled(number, (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)), whole="")


def size(count: float) -> str:
    """A number of bytes with three significant digits.

    Example:
        >>> from jaxtorch.widgets.units import size
        >>> size(0), size(17), size(1536), size(3 * 2**30)
        ('0', '17 B', '1.50 KiB', '3.00 GiB')
    """
    steps = [(unit, 1024.0**i) for i, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))]
    return _scaled(count, steps, whole="B")


def share(part: float, whole: float) -> str:
    """A share in percent.

    Example:
        >>> from jaxtorch.widgets.units import share
        >>> share(1, 3), share(0, 3), share(1, 0)
        ('33.3 %', '0.0 %', '')
    """
    return f"{100 * part / whole:.1f} %" if whole else ""


def _scaled(number: float, steps: Sequence[tuple[str, float]], whole: str) -> str:
    if not number:
        return "0"
    unit, scale = steps[0]
    for larger, start in steps[1:]:
        if abs(number) >= start:
            unit, scale = larger, start
    value = number / scale
    places = 0 if unit == whole or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{places}f} {unit}".rstrip()
