"""How a long list of tensors is divided into calls of few different programs.

XLA's CPU compiler makes a kernel of machine code for each tensor that a program computes, also where the kernels are
the same. A list of 148 parameters has a dozen different shapes, so most kernels of one program for the whole list are
repetitions. If the list is divided into parts of equal composition, one program of a few kernels runs them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

# What the parts cost, in units of one more kernel to compile (about 10 ms).
_PROGRAM = 5.0  # one more program: its trace, and what XLA does once in each program
_LAUNCH = 0.25  # one more launch, of which training makes thousands
# The most tensors of one kind in a part, as far as one kind decides the number of parts.
_MOST_EACH = 8

Parts = list[list[int]]


def parts_of(kinds: Sequence[Hashable]) -> Parts:
    """Divide positions into parts, so that few kernels have to be compiled. Each part is a list of positions.

    Parts that have the same kinds in the same order share a program.

    Args:
        kinds: for each position, what its kernel depends on.

    Example:
        >>> layers = ["weight", "bias"] * 12
        >>> parts = parts_of([*layers, "head"])
        >>> len(parts), parts[0], parts[-1]
        (13, [0, 1], [24])
    """
    of_kind: dict[Hashable, list[int]] = {}
    for position, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(position)
    parts: Parts = []
    while of_kind:
        count = _count([len(positions) for positions in of_kind.values()])
        rest: dict[Hashable, list[int]] = {}
        first: Parts = [[] for _ in range(count)]
        for kind, positions in of_kind.items():
            each = len(positions) // count
            for i, part in enumerate(first):
                part += positions[i * each : (i + 1) * each]
            if len(positions) > each * count:
                rest[kind] = positions[each * count :]
        parts += first
        of_kind = rest
    return parts


def _count(sizes: list[int]) -> int:
    """The cheapest number of equal parts, given how many positions each kind has."""

    def cost(count: int) -> float:
        left = [size % count for size in sizes if size % count]
        rest = min(_cost(left, again) for again in _counts(left)) if left else 0.0
        return sum(size // count for size in sizes) + _PROGRAM + _LAUNCH * count + rest

    return min(_counts(sizes), key=cost)


def _cost(sizes: list[int], count: int) -> float:
    """The cost of so many equal parts, and one of what is left."""
    equal = sum(size // count for size in sizes)
    left = sum(size % count for size in sizes)
    return equal + _PROGRAM + _LAUNCH * count + (left + _PROGRAM + _LAUNCH if left else 0.0)


def _counts(sizes: list[int]) -> set[int]:
    """The numbers of parts to choose from: those that some kind divides into well."""
    return {1} | {
        size // each for size in sizes for each in range(1, _MOST_EACH + 1) if size >= each
    }
