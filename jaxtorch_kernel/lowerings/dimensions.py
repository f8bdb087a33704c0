"""Arguments with one number per dimension."""

from __future__ import annotations

from .types import Ints


def per_dimension(values: Ints, count: int, default: Ints = ()) -> list[int]:
    """Expand `2` and `[2]` to `[2, 2]`, as torch does everywhere; an empty list means the default.

    Example:
        >>> per_dimension([3], 2), per_dimension((), 2, default=[1, 2])
        ([3, 3], [1, 2])
    """
    values = [values] if isinstance(values, int) else list(values)
    if not values and default:
        return per_dimension(default, count)
    return values * count if len(values) == 1 else values
