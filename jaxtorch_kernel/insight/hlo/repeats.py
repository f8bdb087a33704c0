"""Repeated layers: scopes such as `blocks.0` to `blocks.99` that have the same modules inside, folded into one.

A program of 100 layers has 100 equal parts. A graph of all of them is too large to read, and one of them is enough.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from .scopes import Scope

Path = tuple[str, ...]

_LEAST = 3  # equal scopes that are folded
_NUMBERED = re.compile(r"(.*?)(\d+)")
_PIECE = re.compile(r"((?:[^.]+\.)*?\d+(?=\.)|.+$)\.?")


class _Tree:
    """The scopes below a scope, and the primitives that were traced in it."""

    def __init__(self) -> None:
        self.children: dict[str, _Tree] = {}
        self.primitives: set[str] = set()

    def at(self, path: Path) -> _Tree:
        tree = self
        for name in path:
            tree = tree.children.setdefault(name, _Tree())
        return tree

    def structure(self) -> frozenset[object]:
        """What repeated layers have in common. XLA may simplify instructions, so only leaves compare primitives."""
        return self._names() if self.children else frozenset(self.primitives)

    def _names(self) -> frozenset[object]:
        return frozenset((name, child._names()) for name, child in self.children.items())


def fold_repeats(scopes: Iterable[Scope]) -> Mapping[Path, tuple[Path, int]]:
    """For the path of each scope: its path with repeated layers folded, and how many scopes share that path.

    Example:
        >>> from jaxtorch.insight.hlo.repeats import fold_repeats
        >>> from jaxtorch.insight.hlo.scopes import Scope
        >>> layers = [Scope(("GPT", f"blocks.{i}", "norm"), False, "mul") for i in range(100)]
        >>> fold_repeats(layers)["GPT", "blocks.7", "norm"]
        (('GPT', 'blocks.0–99', 'norm'), 100)
    """
    root = _Tree()
    paths: dict[Path, list[Path]] = {}
    for scope in scopes:
        pieces = paths.setdefault(scope.path, [_pieces(name) for name in scope.path])
        root.at(_flat(pieces)).primitives.add(scope.primitive)
    renamed = dict(_renamed(root, ()))
    folds = {}
    for path, pieces in paths.items():
        flat = _flat(pieces)
        names = [renamed.get(flat[: i + 1], (name, 1)) for i, name in enumerate(flat)]
        rest = iter(names)
        folded = tuple(".".join(next(rest)[0] for _ in parts) for parts in pieces)
        folds[path] = folded, math.prod(number for _, number in names)
    return folds


def _pieces(name: str) -> Path:
    """The name of a scope, divided after its numbers: a container module has no scope of its own.

    Example:
        >>> _pieces("model.blocks.3.norm.0"), _pieces("head")
        (('model.blocks.3', 'norm.0'), ('head',))
    """
    pieces = tuple(_PIECE.findall(name))
    return pieces if ".".join(pieces) == name else (name,)


def _flat(pieces: list[Path]) -> Path:
    return tuple(piece for parts in pieces for piece in parts)


def _renamed(tree: _Tree, path: Path) -> Iterable[tuple[Path, tuple[str, int]]]:
    """For each repeated scope below `path`: the name that it shares, and the number of those that share it."""
    groups: dict[tuple[str, frozenset[object]], list[str]] = {}
    for name, child in tree.children.items():
        if numbered := _NUMBERED.fullmatch(name):
            groups.setdefault((numbered[1], child.structure()), []).append(name)
        yield from _renamed(child, (*path, name))
    for (stem, _), names in groups.items():
        if len(names) >= _LEAST:
            shared = stem + _ranges(sorted(int(name[len(stem) :]) for name in names))
            for name in names:
                yield (*path, name), (shared, len(names))


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers in few letters.

    Example:
        >>> _ranges([0, 1, 2, 5, 7, 8]), _ranges([0, 2, 4, 6, 8, 10])
        ('0–2,5,7–8', '0,2,4,…,10')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ",".join(texts if len(texts) <= 4 else [*texts[:3], "…", texts[-1]])
