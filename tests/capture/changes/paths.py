"""Programs that read a value through two holders, and changes at each level, while what was there before lives on.

A holder is an object, a container or a function that holds one value. A path puts one holder into another, and a leaf
into that: `v.k["a"]`. Between two runs another leaf is put into the inner holder, another inner holder into the outer
one, or `v` becomes another outer one. Nothing dies meanwhile, so that no program is dropped for that reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple


class Holder(NamedTuple):
    """How a holder is made around an expression, how its value is read, and the statement that puts another one there.

    Attributes:
        put: empty where the holder cannot change.
    """

    make: str
    read: str
    put: str = ""


class Leaf(NamedTuple):
    """Two values, and how the code uses one of them."""

    first: str
    second: str
    use: str


class Path(NamedTuple):
    """One program and its changes.

    Attributes:
        given: source that sets up `v`.
        code: an expression of `v` and `x`.
        changes: statements, by the level that they change.
    """

    given: str
    code: str
    changes: dict[str, str]


PRELUDE = """
import argparse, collections, contextvars, dataclasses, functools, types, weakref
import torch
from torch import nn
class O:
    pass
def obj(k):
    o = O()
    o.k = k
    return o
class Slots:
    __slots__ = ("k",)
    def __init__(self, k):
        self.k = k
@dataclasses.dataclass
class Data:
    k: object
@dataclasses.dataclass(frozen=True)
class Frozen:
    k: object
class Property:
    def __init__(self, k):
        self._k = k
    @property
    def k(self):
        return self._k
class Getattr:
    def __init__(self, k):
        self.table = {"k": k}
    def __getattr__(self, name):
        return self.table[name]
class Getitem:
    def __init__(self, k):
        self.inner = k
    def __getitem__(self, name):
        return self.inner
class Calls:
    def __init__(self, k):
        self.k = k
    def __call__(self):
        return self.k
    def get(self):
        return self.k
class Cached:
    def __init__(self, k):
        self.inner = k
    @functools.cached_property
    def k(self):
        return self.inner
class Descriptor:
    def __get__(self, owner, cls):
        return owner.inner
class Described:
    k = Descriptor()
    def __init__(self, k):
        self.inner = k
class Net(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
Pair = collections.namedtuple("Pair", "k other")
def of_class(value):
    return type("K", (), {"k": value})
def of_closure(value):
    def read():
        return value
    return read
def of_default(value):
    def read(k=value):
        return k
    return read
def of_keyword_default(value):
    def read(*, k=value):
        return k
    return read
def of_function(value):
    def read():
        pass
    read.k = value
    return read
def of_module(value):
    m = types.ModuleType("the_users_module")
    m.__file__ = "/tmp/the_users_module.py"
    m.k = value
    return m
def of_sequential(value):
    return nn.Sequential(Net(value))
def first(k, *rest):
    return k
class Thing:
    def __init__(self, n):
        self.n = n
"""

HOLDERS: dict[str, Holder] = {
    "object": Holder("obj({})", "{}.k", "{}.k = {}"),
    "slots": Holder("Slots({})", "{}.k", "{}.k = {}"),
    "dataclass": Holder("Data({})", "{}.k", "{}.k = {}"),
    "frozen dataclass": Holder("Frozen({})", "{}.k"),
    "property": Holder("Property({})", "{}.k", "{}._k = {}"),
    "__getattr__": Holder("Getattr({})", "{}.k", "{}.table['k'] = {}"),
    "__getitem__": Holder("Getitem({})", "{}['k']", "{}.inner = {}"),
    "callable object": Holder("Calls({})", "{}()", "{}.k = {}"),
    "method": Holder("Calls({})", "{}.get()", "{}.k = {}"),
    "bound method": Holder("Calls({}).get", "{}()", "{}.__self__.k = {}"),
    "descriptor": Holder("Described({})", "{}.k", "{}.inner = {}"),
    "module": Holder("Net({})", "{}.k", "{}.k = {}"),
    "module in another": Holder("of_sequential({})", "{}[0].k", "{}[0].k = {}"),
    "named tuple": Holder("Pair({}, 1)", "{}.k"),
    "named tuple's item": Holder("Pair({}, 1)", "{}[0]"),
    "tuple": Holder("({}, 1)", "{}[0]"),
    "tuple from its end": Holder("(1, {})", "{}[-1]"),
    "tuple unpacked": Holder("({}, 1)", "first(*{})"),
    "tuple's slice": Holder("({}, 1)", "{}[:1][0]"),
    "tuple in a loop": Holder("({},)", "[k for k in {}][0]"),
    "list": Holder("[{}, 1]", "{}[0]", "{}[0] = {}"),
    "list from its end": Holder("[1, {}]", "{}[-1]", "{}[-1] = {}"),
    "list iterated": Holder("[{}]", "next(iter({}))", "{}[0] = {}"),
    "dict": Holder("{{'k': {}}}", "{}['k']", "{}['k'] = {}"),
    "dict.get": Holder("{{'k': {}}}", "{}.get('k')", "{}['k'] = {}"),
    "dict's values": Holder("{{'k': {}}}", "[*{}.values()][0]", "{}['k'] = {}"),
    "dict unpacked": Holder("{{'k': {}}}", "first(**{})", "{}['k'] = {}"),
    "defaultdict": Holder("collections.defaultdict(int, k={})", "{}['k']", "{}['k'] = {}"),
    "OrderedDict": Holder("collections.OrderedDict(k={})", "{}['k']", "{}['k'] = {}"),
    "ChainMap": Holder("collections.ChainMap({{'k': {}}})", "{}['k']", "{}['k'] = {}"),
    "UserDict": Holder("collections.UserDict(k={})", "{}['k']", "{}['k'] = {}"),
    "UserList": Holder("collections.UserList([{}])", "{}[0]", "{}[0] = {}"),
    "deque": Holder("collections.deque([{}])", "{}[0]", "{}[0] = {}"),
    "mapping proxy": Holder("types.MappingProxyType({{'k': {}}})", "{}['k']"),
    "SimpleNamespace": Holder("types.SimpleNamespace(k={})", "{}.k", "{}.k = {}"),
    "Namespace": Holder("argparse.Namespace(k={})", "{}.k", "{}.k = {}"),
    "vars": Holder("obj({})", "vars({})['k']", "{}.k = {}"),
    "getattr": Holder("obj({})", "getattr({}, 'k')", "{}.k = {}"),
    "class": Holder("of_class({})", "{}.k", "{}.k = {}"),
    "object's class": Holder("of_class({})()", "{}.k", "type({}).k = {}"),
    "type of an object": Holder("of_class({})()", "type({}).k", "type({}).k = {}"),
    "closure": Holder("of_closure({})", "{}()", "{}.__closure__[0].cell_contents = {}"),
    "default": Holder("of_default({})", "{}()", "{}.__defaults__ = ({},)"),
    "keyword default": Holder("of_keyword_default({})", "{}()", "{}.__kwdefaults__ = {{'k': {}}}"),
    "function's attribute": Holder("of_function({})", "{}.k", "{}.k = {}"),
    "partial": Holder("functools.partial(first, {})", "{}()"),
    "partial's keyword": Holder("functools.partial(first, k={})", "{}()", "{}.keywords['k'] = {}"),
    "Python module": Holder("of_module({})", "{}.k", "{}.k = {}"),
}

LEAVES = {
    "tensor": Leaf("one", "two", "x * {}"),
    "number": Leaf("3.0", "7.0", "x * {}"),
    "object": Leaf("three", "seven", "x * {}.n"),
    "function": Leaf("plus", "minus", "{}(x)"),
}
GIVEN = """
one, two = torch.ones(2, device=dev), torch.full((2,), 5.0, device=dev)
three, seven = Thing(3.0), Thing(7.0)
def plus(x):
    return x + 1
def minus(x):
    return x - 1
"""


def paths() -> Iterator[tuple[str, Path]]:
    """Every pair of holders with every leaf."""
    for (outer, a), (inner, b), (what, leaf) in itertools.product(
        HOLDERS.items(), HOLDERS.items(), LEAVES.items()
    ):
        if "loop" in outer and "loop" in inner:
            continue  # the variable of one comprehension would hide that of the other
        if inner == "object's class" and what == "function":
            continue  # it would be a method
        if outer == "object's class" and b.make.startswith("of_"):
            continue  # as would be a function that holds the leaf
        new = b.make.format(leaf.second)
        changes = {}
        if b.put:
            changes["leaf"] = b.put.format(a.read.format("v"), leaf.second)
        if a.put:
            changes["inner holder"] = a.put.format("v", new)
        changes["outer holder"] = f"v = {a.make.format(new)}"
        given = f"v = {a.make.format(b.make.format(leaf.first))}"
        code = leaf.use.format(b.read.format(a.read.format("v")))
        yield f"{outer} > {inner} > {what}", Path(given, code, changes)


class State(NamedTuple):
    """What a place holds first, what the code puts there, what it returns, what another hand puts there.

    `{r}` is the expression that reads the place.
    """

    first: str
    next: str
    out: str
    other: str


STATES = {
    "a tensor": State("one", "x * 2", "x + 1", "two"),
    "a tensor that is read": State("one", "{r} * x + 1", "{r} + x", "two"),
    "a counter": State("2", "{r} + 1", "x * {r}", "9"),
    "a counter that is not read": State("2", "{r} + 1", "x * 2", "9"),
    "a number": State("2", "7", "x * {r}", "9"),
    "a tuple of tensors": State("(one, one)", "({r}[1] + x, {r}[0])", "{r}[0] * x", "(two, one)"),
    "an object": State("three", "seven", "x * {r}.n", "three"),
    "a list": State("[1.0]", "[{r}[0] * 2]", "x * {r}[0]", "[4.0]"),
}


class Write(NamedTuple):
    """A program that writes at the end of a path: `read` is the place, `change` another hand's write."""

    given: str
    code: str
    change: str
    read: str


def writes() -> Iterator[tuple[str, Write]]:
    """Every pair of holders, the inner one of a kind that can change, with every state."""
    for (outer, a), (inner, b), (what, state) in itertools.product(
        HOLDERS.items(), HOLDERS.items(), STATES.items()
    ):
        if not b.put or ("loop" in outer and "loop" in inner):
            continue
        if outer == "object's class" and b.make.startswith("of_"):
            continue  # a function would be a method
        path = a.read.format("v")
        read = b.read.format(path)
        out, put = state.out.format(r=read), b.put.format(path, state.next.format(r=read))
        given = f"v = {a.make.format(b.make.format(state.first))}"
        code = f"out = {out}\n    {put}"
        yield (
            f"{outer} > {inner} > {what}",
            Write(given, code, b.put.format(path, state.other), read),
        )
