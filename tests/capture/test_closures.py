"""A closure variable changes that only a function reads which Python's code never names, such as a property.

Its cell is found by the running function. A session may have called `gc.freeze()`, which hides functions from searches.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .changes.harness import DOORS, Row, check

_MADE = """
import functools
def make():
    k = 2.0
    def put(value):
        nonlocal k
        k = value
    class Meta(type):
        def __getattr__(cls, name):
            if name != "unknown":
                raise AttributeError(name)
            return k
    class Descriptor:
        def __get__(self, instance, owner):
            return k
    class C(metaclass=Meta):
        described = Descriptor()
        @property
        def by(self):
            return k
        @classmethod
        def of_class(cls):
            return k
        def __len__(self):
            return int(k)
        def __iter__(self):
            yield k
        def __enter__(self):
            return k
        def __exit__(self, *raised):
            return None
    @functools.lru_cache(maxsize=0)
    def kept_by_c():
        return k
    return C(), put, kept_by_c
c, put, kept_by_c = make()
"""
_CODE = {
    "a property": "out = x * c.by",
    "a metaclass": "out = x * type(c).unknown",
    "a descriptor": "out = x * c.described",
    "a class method": "out = x * c.of_class()",
    "a length": "out = x * len(c)",
    "an iteration": "out = x * list(c)[0]",
    "a context": "with c as by:\n    out = x * by",
    "a function called by C": "out = x * kept_by_c()",
    "a property of two objects": "out = x * c.by * other.by",
}
_GIVEN = _MADE + "other, put_other, _ = make()\nput_other(2.0)\nimport gc\ngc.freeze()\n"
# torch's own compiler does not see the first change, and cannot compile the second.
_NOT_IN_DYNAMO = {"a metaclass", "a descriptor"}
ROWS = [
    Row(name, _GIVEN, code, "put(3.0)", stale_in_dynamo=name in _NOT_IN_DYNAMO)
    for name, code in _CODE.items()
]
CASES = [
    pytest.param(row, door, id=f"{row.id} [{door}]")
    for row in ROWS
    for door in DOORS
    if row.applies(door)
]


@pytest.mark.parametrize(("row", "door"), CASES)
def test_a_change_is_seen_in_a_frozen_session(row: Row, door: str, tmp_path: Path) -> None:
    check(row, door, tmp_path)
