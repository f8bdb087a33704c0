"""Divides a long list of tensors into calls of few different programs.

Compiling a program for a list of 148 parameters, which have a dozen different shapes, takes time for two reasons. JAX
and XLA need several milliseconds for each tensor of an optimizer. And XLA's CPU compiler generates machine code, in 10
to 50 ms, for each kernel that differs from the others: by the shape of the tensor, or by the index of its number in a
list of numbers. If the list is divided into parts of equal composition, one program of few tensors runs them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

# The cost of the parts, in units of one more kernel to compile.
_TENSOR = 0.12  # one more tensor in a program
_PROGRAM = 1.0  # one more program
_LAUNCH = 1.0  # one more launch, in hundreds of steps (20 to 75 µs each)

# The most tensors of one kind in a part, as far as one kind decides the number of parts.
_MOST_EACH = 16

Parts = list[list[int]]


def parts_of(kinds: Sequence[Hashable], numbered: bool) -> Parts:
    """Divide positions into parts, so that little has to be compiled. Each part is a list of positions.

    Parts that have the same kinds in the same order share a program.

    Args:
        kinds: for each position, what its kernel depends on.
        numbered: each position has a number of its own, so that no two kernels of a program are the same.

    Example:
        >>> layers = ["weight", "bias"] * 12
        >>> parts = parts_of([*layers, "head"], numbered=True)
        >>> len(parts), parts[0], parts[-1]
        (7, [0, 2, 1, 3], [24])
    """
    of_kind: dict[Hashable, list[int]] = {}
    for position, kind in enumerate(kinds):
        of_kind.setdefault(kind, []).append(position)
    parts: Parts = []
    while of_kind:
        count = _count([len(positions) for positions in of_kind.values()], numbered)
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


def _count(sizes: list[int], numbered: bool) -> int:
    """The cheapest number of equal parts, given how many positions each kind has."""

    def cost(count: int) -> float:
        left = [size % count for size in sizes if size % count]
        rest = min(_cost(left, again, numbered) for again in _counts(left)) if left else 0.0
        return _cost_equal(sizes, count, numbered) + rest

    return min(sorted(_counts(sizes)), key=cost)


def _cost(sizes: list[int], count: int, numbered: bool) -> float:
    """The cost of this number of equal parts, and one part for the rest."""
    left = [size % count for size in sizes if size % count]
    rest = _cost_equal(left, 1, numbered) if left else 0.0
    return _cost_equal(sizes, count, numbered) + rest


def _cost_equal(sizes: list[int], count: int, numbered: bool) -> float:
    """The cost of this number of equal parts."""
    each = [size // count for size in sizes if size >= count]
    kernels = sum(each) if numbered else len(each)
    return kernels + _TENSOR * sum(each) + _PROGRAM + _LAUNCH * count


def _counts(sizes: list[int]) -> set[int]:
    """The numbers of parts to choose from: those that some kind divides into well."""
    return {1} | {
        size // each for size in sizes for each in range(1, _MOST_EACH + 1) if size >= each
    }
