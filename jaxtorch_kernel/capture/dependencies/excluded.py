"""Values that traced code reads without depending on them."""

from __future__ import annotations

from typing import NamedTuple


class Excluded(NamedTuple):
    """Values that traced code receives in place of the original ones, or sets itself: they are not dependencies.

    A function to be traced carries them as its attribute `excluded`.

    Attributes:
        namespace: a dictionary that the code runs in, as a notebook cell does.
        names: of the values there.
        tables: modules' tables whose tensors are replaced during the trace, by identity.
    """

    namespace: dict[str, object] | None
    names: frozenset[str]
    tables: set[int]


NOTHING = Excluded(None, frozenset(), set())
