"""A plain value changes: a global, an argument, or what a closure keeps, of every type that configures code."""

from __future__ import annotations

from .harness import CAPTURES, Row

# What it is, its first value, the next, and what the code makes of it.
VALUES = [
    ("an int", "2", "3", "x * v"),
    ("a large int", "2**70", "2**71", "x * float(v)"),
    ("a negative int", "-1", "-2", "x[v] * x"),
    ("a float", "2.0", "2.5", "x * v"),
    ("a float's sign", "0.0", "-0.0", "x * math.copysign(1, v)"),
    ("inf for nan", "math.nan", "math.inf", "torch.clamp(x, max=1.0) if v != v else x"),
    ("a float for an int", "2", "2.0", "x.long() * v"),
    ("a bool for an int", "1", "True", "x * (2 if v is True else 3)"),
    ("a bool for a float", "1.0", "True", "x * (2 if v is True else 3)"),
    ("a bool", "True", "False", "x if v else -x"),
    ("a complex", "2j", "3j", "x * v"),
    ("a string", "'sin'", "'cos'", "getattr(torch, v)(x)"),
    ("a string's case", "'Sin'", "'sin'", "x * (2 if v.islower() else 3)"),
    ("bytes", "b'a'", "b'b'", "x * v[0]"),
    ("a bytearray", "bytearray(b'a')", "bytearray(b'b')", "x * v[0]"),
    ("None", "None", "2", "x if v is None else x * v"),
    ("an ellipsis", "...", "0", "x[v] * x"),
    ("a tuple", "(1, 2)", "(1, 3)", "x * v[1]"),
    ("a nested tuple", "(1, (2, (3,)))", "(1, (2, (4,)))", "x * v[1][1][0]"),
    ("a tuple's length", "(1, 2)", "(1, 2, 3)", "x * len(v)"),
    ("a type in a tuple", "(1, 2)", "(1, 2.0)", "x.long() * v[1]"),
    ("a bool in a tuple", "(1, 1)", "(1, True)", "x * (2 if v[1] is True else 3)"),
    ("a frozenset", "frozenset({1, 2})", "frozenset({1, 3})", "x * (2 if 2 in v else 3)"),
    ("a bool in a frozenset", "frozenset({1})", "frozenset({True})",
     "x * (2 if True in [e is True for e in v] else 3)"),
    ("an enum", "Mode.ADD", "Mode.MULTIPLY", "x + 2 if v is Mode.ADD else x * 2"),
    ("an int enum", "Level.LOW", "Level.HIGH", "x * v"),
    ("a flag", "re.I", "re.I | re.M", "x * v.value"),
    ("a range", "range(3)", "range(4)", "x * sum(v)"),
    ("a slice", "slice(0, 2)", "slice(1, 3)", "x[v] * 2"),
    ("a dtype", "torch.float16", "torch.float64", "x.to(v)"),
    ("a device", "torch.device('cpu')", "torch.device('meta')", "x * (2 if v.type == 'cpu' else 3)"),
    ("a size", "torch.Size([4])", "torch.Size([2, 2])", "x.reshape(v)"),
    ("a memory format", "torch.contiguous_format", "torch.channels_last",
     "x * (2 if v == torch.contiguous_format else 3)"),
    ("a Fraction", "Fraction(1, 2)", "Fraction(1, 3)", "x * float(v)"),
    ("a Decimal", "Decimal('0.1')", "Decimal('0.2')", "x * float(v)"),
    ("a date", "date(2024, 1, 2)", "date(2024, 1, 3)", "x * v.day"),
    ("a path", "Path('a')", "Path('bc')", "x * len(v.name)"),
    ("a pattern", "re.compile('a')", "re.compile('b')", "x * (2 if v.match('a') else 3)"),
    ("a class", "int", "float", "x * v(2.5)"),
    ("a NumPy scalar", "np.float32(2)", "np.float32(3)", "x * v.item()"),
    ("a NumPy scalar's dtype", "np.float32(2)", "np.float64(2)", "x * v.itemsize"),
    ("a NumPy dtype", "np.dtype('int32')", "np.dtype('int64')", "x * v.itemsize"),
    ("a module", "math", "cmath", "x * (2 if v.__name__ == 'math' else 3)"),
]  # fmt: skip
# What torch's own compiler misses (door "dynamo" shows it), or, a Decimal, cannot read.
UNSEEN_BY_DYNAMO = {"a float's sign", "a bool in a frozenset", "a Decimal"}

_IMPORTS = """
import cmath, enum, math, re
import numpy as np
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2
class Level(enum.IntEnum):
    LOW = 2
    HIGH = 3
"""
_CLOSURE = """
def make(v):
    def f(x):
        return {}
    def change(new):
        nonlocal v
        v = new
    return f, change
f, change = make({})
"""


def _global(what: str, before: str, after: str, code: str) -> Row:
    return Row(
        f"a global: {what}",
        f"{_IMPORTS}\nv = {before}",
        f"out = {code}",
        (f"v = {after}", f"v = {before}"),
        stale_in_dynamo=what in UNSEEN_BY_DYNAMO,
    )


def _closure(what: str, before: str, after: str, code: str) -> Row:
    given = _IMPORTS + _CLOSURE.format(code, before)
    change = (f"change({after})", f"change({before})")
    return Row(f"a closure: {what}", given, "out = f(x)", change, doors=CAPTURES)


def _in_function(what: str, before: str, after: str, code: str) -> Row:
    given = f"{_IMPORTS}\nv = {before}\ndef f(x):\n    return {code}"
    return Row(f"a function's global: {what}", given, "out = f(x)", f"v = {after}", doors=CAPTURES)


def _argument(what: str, before: str, after: str, code: str) -> Row:
    return Row(
        f"a plain argument: {what}",
        f"{_IMPORTS}\nv = {before}",
        f"out = {code}",
        (f"v = {after}", f"v = {before}"),
        args="x, v",
        stale_in_dynamo=what in UNSEEN_BY_DYNAMO,
    )


ROWS = [
    *(_global(*value) for value in VALUES),
    *(_argument(*value) for value in VALUES),
    *(_closure(*value) for value in VALUES),
    *(_in_function(*value) for value in VALUES[::3]),
]
