"""Line-by-line comparison of two programs that ignores the numbers in names.

XLA and JAX number the names in a program, so an inserted instruction changes the names of all later ones. The
comparison therefore removes the number from each name (in jaxprs and StableHLO, a placeholder replaces the whole name).
Two lines that then look equal must also mean the same. So their names are paired, and the lines differ if one of the
names is already paired with another one. As a result, only an inserted operation and the lines that read its result
differ.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .listing import Listing, without_metadata


class Hunk(NamedTuple):
    """Corresponding lines of both texts, as zero-based ranges.

    Attributes:
        same: whether the lines are equal.
    """

    same: bool
    first: range
    second: range


@dataclass(frozen=True)
class Diff:
    """A comparison. The hunks are in order and cover both texts."""

    first: Listing
    second: Listing
    hunks: tuple[Hunk, ...]

    @property
    def removed(self) -> int:
        """The number of lines that are only in the first text."""
        return sum(len(h.first) for h in self.hunks if not h.same)

    @property
    def added(self) -> int:
        """The number of lines that are only in the second text."""
        return sum(len(h.second) for h in self.hunks if not h.same)


class _Line(NamedTuple):
    text: str  # without names
    names: tuple[str, ...]


def compare(first: Listing, second: Listing) -> Diff:
    """Compare two listings of the same stage.

    Raises:
        ValueError: the listings are of different stages.
    """
    if first.stage != second.stage:
        raise ValueError(f"cannot compare a {first.stage} and a {second.stage} line by line")
    canonical = _CANONICAL[first.stage]
    one, two = canonical(first.lines), canonical(second.lines)
    pairs = _Pairs()
    hunks: list[Hunk] = []
    at = 0, 0
    for i1, j1, size in matches([l.text for l in one], [l.text for l in two]):
        if (i1, j1) != at:
            _add(hunks, False, range(at[0], i1), range(at[1], j1))
        at = i1 + size, j1 + size
        for i, j in zip(range(i1, at[0]), range(j1, at[1]), strict=True):
            if first.stage == "stablehlo" and "func.func" in one[i].text:
                pairs = _Pairs()  # each function numbers its names from 0
            same = pairs.fit(one[i].names, two[j].names)
            _add(hunks, same, range(i, i + 1), range(j, j + 1))
    return Diff(first, second, tuple(hunks))


def _add(hunks: list[Hunk], same: bool, first: range, second: range) -> None:
    if hunks and hunks[-1].same == same:
        last = hunks.pop()
        first, second = range(last.first.start, first.stop), range(last.second.start, second.stop)
    hunks.append(Hunk(same, first, second))


_MOST_EDITS = 1000


def matches(first: Sequence[str], second: Sequence[str]) -> list[tuple[int, int, int]]:
    """The equal ranges, as (start in the first, start in the second, length). An empty range ends the list.

    Programs repeat the same lines thousands of times. On such texts difflib takes hours or gives up. But two versions
    of a program usually differ in few lines, and the time of Myers' algorithm (1986) grows with the number of
    differences: it tracks the furthest point reached with 0, 1, 2, ... edits on each diagonal of the edit graph.
    Programs with more than `_MOST_EDITS` differences are left to difflib.

    Example:
        >>> from jaxtorch.insight.hlo.diff import matches
        >>> matches("abcd", "bxcd")
        [(1, 0, 1), (2, 2, 2), (4, 4, 0)]
    """
    codes: dict[str, int] = {}
    a = [codes.setdefault(line, len(codes)) for line in first]
    b = [codes.setdefault(line, len(codes)) for line in second]
    n, m = len(a), len(b)
    furthest = {1: 0}  # diagonal -> position in the first
    steps: list[dict[int, int]] = []
    for edits in range(min(_MOST_EDITS, n + m) + 1):
        steps.append(dict(furthest))
        for diagonal in range(-edits, edits + 1, 2):
            x, _ = _enter_diagonal(furthest, diagonal, edits)
            while x < n and x - diagonal < m and a[x] == b[x - diagonal]:
                x += 1
            furthest[diagonal] = x
            if x >= n and x - diagonal >= m:
                return [*_backtrack(steps, n, m), (n, m, 0)]
    matcher = difflib.SequenceMatcher(None, first, second)
    return [(i, j, size) for i, j, size in matcher.get_matching_blocks()]


def _enter_diagonal(furthest: dict[int, int], diagonal: int, edits: int) -> tuple[int, int]:
    """The position at which one more edit enters a diagonal, and the diagonal that it comes from.

    An insertion comes from the diagonal above, a deletion from the one below.
    """
    above, left = furthest.get(diagonal + 1, -1), furthest.get(diagonal - 1, -1)
    if diagonal == -edits or (diagonal != edits and left < above):
        return above, diagonal + 1
    return left + 1, diagonal - 1


def _backtrack(steps: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    """The equal ranges along the path that reached the end."""
    ranges = []
    for edits in range(len(steps) - 1, -1, -1):
        diagonal = x - y
        start, before = _enter_diagonal(steps[edits], diagonal, edits)
        if x > start:
            ranges.append((start, start - diagonal, x - start))
        if edits:
            x = steps[edits][before]
            y = x - before
    return ranges[::-1]


class _Pairs:
    """A one-to-one mapping of names in the first text to names in the second."""

    def __init__(self) -> None:
        self._to_second: dict[str, str] = {}
        self._to_first: dict[str, str] = {}

    def fit(self, first: Iterable[str], second: Iterable[str]) -> bool:
        """Whether the names correspond; new names are paired."""
        fits = True
        for a, b in zip(first, second, strict=True):
            fits &= self._to_second.setdefault(a, b) == b and self._to_first.setdefault(b, a) == a
        return fits


_HLO_NAME = re.compile(r"%([\w\-]+(?:\.[\w\-]+)*)")
_NUMBER = re.compile(r"(?:\.(?:\d+|clone|remat\d*))+$|_\d+$")
_PARAMETERS = re.compile(r"(?<=[(\s])[\w.\-]+(?=: [a-z(])")
_CONFIG = re.compile(r"backend_config=(\{.*\})")


def _hlo(lines: Sequence[str]) -> list[_Line]:
    return [_hlo_line(line) for line in lines]


def _hlo_line(line: str) -> _Line:
    line = without_metadata(line)
    if line.startswith("HloModule "):
        _, _, attributes = line.partition(",")  # the module's name is that of the function
        return _Line(f"HloModule{attributes}", ())
    if line.endswith("{"):  # a computation's head repeats the names of its parameters
        line = _PARAMETERS.sub("_", line)
    config = _CONFIG.search(line)
    if config:  # XLA prints the keys in an arbitrary order
        line = line[: config.start()] + _sorted(config[1]) + line[config.end() :]
    names = tuple(_HLO_NAME.findall(line))
    return _Line(_HLO_NAME.sub(lambda m: "%" + _NUMBER.sub("", m[1]), line), names)


def _sorted(text: str) -> str:
    try:
        return json.dumps(_without_estimates(json.loads(text)), sort_keys=True)
    except ValueError:
        return text


def _without_estimates(config: object) -> object:
    """A configuration without libtpu's estimates of what an instruction takes, which are not part of the program."""
    if not isinstance(config, dict):
        return config
    return {k: _without_estimates(v) for k, v in config.items() if "estimated" not in k}


_MLIR_NAME = re.compile(r"%[\w]+|(?<=@)closed_call\w*|(?<=@)\w+_\d+\b")


def _stablehlo(lines: Sequence[str]) -> list[_Line]:
    return [_Line(_MLIR_NAME.sub("%", line), tuple(_MLIR_NAME.findall(line))) for line in lines]


_BOUND = re.compile(r"\b([a-z]+):[a-z]\w*\[")


def _jaxpr(lines: Sequence[str]) -> list[_Line]:
    names = {name for line in lines for name in _BOUND.findall(line)}
    if not names:
        return [_Line(line, ()) for line in lines]
    identifiers = re.compile(r"(?<![\w.=])[a-z]+(?![\w=(\[])")

    def line_of(line: str) -> _Line:
        line_names = tuple(name for name in identifiers.findall(line) if name in names)
        return _Line(identifiers.sub(lambda m: "_" if m[0] in names else m[0], line), line_names)

    return [line_of(line) for line in lines]


_CANONICAL: dict[str, Callable[[Sequence[str]], list[_Line]]] = {
    "hlo": _hlo,
    "stablehlo": _stablehlo,
    "jaxpr": _jaxpr,
}
