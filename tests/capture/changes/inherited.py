"""What an object has from its class: the object hides it, an earlier base does, or the object gets another class.

A number that has changed between two runs is an operand of the next program, which accepts any number. So each of these
rows first changes the number on the class, twice.
"""

from __future__ import annotations

from .harness import CAPTURES, Row

_MODULE = "class N(nn.Module):\n    k = 2.0\n    def forward(self, x):\n        return x * self.k\nn = N()"
_CLASSES = """
class A:
    k = 2.0
class Other:
    k = 70.0
class B(A):
    def __call__(self, x):
        return x * self.k
class B2(A):
    k = 50.0
    def __call__(self, x):
        return x * self.k
n = B()
"""
_CHANGED = ("A.k = 3.0", "A.k = 3.5")
_HIDDEN = (
    *_CHANGED,
    "B.k = 4.0",
    "A.k = 9.0",
    "B.k = 5.0",
    "n.k = 6.0",
    "del n.k",
    "del B.k",
    "A.k = 1.5",
)
_NUMBERS = [
    Row("a number of a module's class", _MODULE, "out = n(x)",
        ("N.k = 3.0", "n.k = 4.0", "n.k = 5.0", "del n.k", "N.k = 7.0")),
    Row("a number of a class, in its method", _CLASSES, "out = n(x)", _HIDDEN, stale_in_dynamo=True),
    Row("a number of a class, by an object", _CLASSES, "out = x * n.k", _HIDDEN, stale_in_dynamo=True),
    Row("a number of a class, by a class", _CLASSES, "out = x * B.k",
        (*_CHANGED, "B.k = 4.0", "A.k = 9.0", "del B.k"), stale_in_dynamo=True),
    Row("a number of a class, by getattr", _CLASSES, "out = x * getattr(n, 'k')", (*_CHANGED, "n.k = 4.0")),
    Row("a number of a class that is exchanged", _CLASSES, "out = x * n.k",
        (*_CHANGED, "n.__class__ = B2", "B2.k = 7.0", "B2.k = 8.0"), stale_in_dynamo=True),
    Row("a number of a base that is exchanged", _CLASSES, "out = x * n.k", (*_CHANGED, "B.__bases__ = (Other,)"),
        stale_in_dynamo=True),
    Row("a number that an object had", "class A:\n    k = 2.0\nclass Other:\n    k = 6.0\na = A()",
        "out = x * vars(a).get('k', 1.0)", ("vars(a).update(k=7.0)", "a.k = 8.0", "del a.k", "A.k = 3.0",
        "A.k = 4.0", "a.__class__ = Other"), watch=("vars(a)",), stale_in_dynamo=True),
    Row("a tuple of numbers of a class", _CLASSES.replace("2.0", "(2.0, 3.0)"), "out = x * n.k[1]",
        ("A.k = (2.0, 4.0)", "A.k = (3.0, 5.0)", "n.k = (7.0, 8.0)", "B.k = (9.0, 9.5)", "del n.k"),
        stale_in_dynamo=True),
    Row("a number of a class without attributes of its objects", "class A:\n    __slots__ = ()\n    k = 2.0\n"
        "class B(A):\n    __slots__ = ()\nn = B()", "out = x * n.k", (*_CHANGED, "B.k = 9.0", "A.k = 1.0"),
        stale_in_dynamo=True),
    Row("a number of another object of the class", "class C:\n    k = 2.0\nc = C()\nd = C()\nd.k = 5.0\nnow = c",
        "out = x * now.k", ("C.k = 3.0", "C.k = 4.0", "now = d", "d.k = 6.0", "now = c", "d.k = 7.0", "now = d")),
    Row("a number of another module of the class", _MODULE + "\nm = N()\nm.k = 5.0\nboth = [n]",
        "out = x\nfor m_ in both:\n    out = m_(out)",
        ("N.k = 3.0", "N.k = 4.0", "both.append(m)", "m.k = 6.0", "both[0] = m", "n.k = 1.0", "both = [n]")),
    Row("a number that an object takes from another one", "class I:\n    k = 2.0\nclass O:\n    def __init__(self):\n"
        "        self.i = I()\n    def __getattr__(self, name):\n        return getattr(self.i, name)\no = O()",
        "out = x * o.k", ("I.k = 3.0", "I.k = 3.5", "o.i.k = 4.0", "o.k = 9.0", "del o.k", "o.i.k = 5.0"),
        stale_in_dynamo=True),
    Row("a number that stands in for a missing one", "import collections\na = {}\nb = {'k': 2.0}\n"
        "d = collections.ChainMap(a, b)", "out = x * d['k']",
        ("b['k'] = 3.0", "b['k'] = 3.5", "a['k'] = 4.0", "b['k'] = 1.0", "a['k'] = 6.0", "del a['k']"),
        stale_in_dynamo=True),
    Row("a number of a class's object", "class G:\n    k = 2.0\nclass C:\n    g = G()\nc = C()\nc.g.k = 2.0",
        "out = x * c.g.k", ("c.g.k = 3.0", "c.g.k = 4.0", "c.g = G()", "c.g.k = 8.0", "del c.g")),
    Row("two numbers of a class's dictionary", "class C:\n    d = {'a': 2.0, 'b': 3.0}\nc = C()",
        "out = x * c.d['a'] + c.d['b']",
        ("C.d['a'] = 3.0", "C.d['a'] = 4.0", "C.d['b'] = 9.0", "c.d = {'a': 1.0, 'b': 1.0}", "c.d['b'] = 5.0")),
]  # fmt: skip

# Special methods, which Python looks up on the class: an expression that calls each, and what it returns for a number.
_SPECIAL = {
    "__abs__": ("abs(n)", "{}"),
    "__add__": ("(n + 1)", "{}"),
    "__bool__": ("(2 if n else 3)", "{} == 1"),
    "__call__": ("n()", "{}"),
    "__contains__": ("(3 if 1 in n else 4)", "{} == 1"),
    "__eq__": ("(n == 1) + 2", "{}"),
    "__float__": ("float(n)", "{}.5"),
    "__getattr__": ("n.any", "{}"),
    "__getitem__": ("n[0]", "{}"),
    "__hash__": ("hash(n)", "{}"),
    "__index__": ("[5, 6, 7][n]", "{}"),
    "__int__": ("int(n)", "{}"),
    "__iter__": ("next(iter(n))", "iter([{}.5])"),
    "__len__": ("len(n)", "{}"),
    "__lt__": ("(2 if n < 1 else 3)", "{} == 1"),
    "__matmul__": ("(n @ 1)", "{}"),
    "__neg__": ("(-n)", "{}"),
    "__reversed__": ("next(reversed(n))", "iter([{}.5])"),
    "__round__": ("round(n)", "{}"),
    "__str__": ("int(str(n))", "'{}'"),
}


def _special(name: str, use: str, result: str) -> Row:
    one, two = result.format(1), result.format(2)
    given = (
        f"class A:\n    def {name}(self, *args):\n        return {one}\n"
        f"class Other:\n    def {name}(self, *args):\n        return {two}\n"
        "class B(A):\n    pass\nn = B()"
    )
    change = (
        "n.__class__ = Other",
        f"Other.{name} = lambda self, *args: {one}",
        "n = B()",
        "B.__bases__ = (Other,)",
        f"Other.{name} = lambda self, *args: {two}",
    )
    return Row(f"{name} of another class", given, f"out = x * {use}", change, doors=CAPTURES)


_PROPERTY = "class {}:\n    @{}\n    def k(self):\n        return {}\n"
_TWO = _PROPERTY.format("A", "property", 2) + _PROPERTY.format("Other", "property", 3)
_CODE = [
    Row("a property of another class", _TWO + "n = A()", "out = x * n.k", "n.__class__ = Other"),
    Row("a property of another base", _TWO + "class B(A):\n    pass\nn = B()", "out = x * n.k",
        "B.__bases__ = (Other,)", stale_in_dynamo=True),
    Row("a cached property of another class", "import functools\n" + _TWO.replace("@", "@functools.cached_")
        + "n = A()", "out = x * n.k", "n = Other()", doors=CAPTURES),
    Row("a context manager of another class", "class A:\n    def __enter__(self):\n        return 2\n"
        "    def __exit__(self, *args):\n        pass\nclass Other(A):\n    def __enter__(self):\n        return 3\n"
        "n = A()", "with n as k:\n    out = x * k", "n.__class__ = Other", doors=CAPTURES),
    Row("a property by super", "class A:\n    @property\n    def k(self):\n        return self.v\nclass B(A):\n"
        "    @property\n    def k(self):\n        return super().k * 2\nb = B()\nb.v = 2.0", "out = x * b.k",
        ("b.v = 3.0", "A.k = property(lambda self: 11.0)", "b.v = 5.0")),
    Row("a class method by super", "class A:\n    @classmethod\n    def k(cls):\n        return 2\nclass B(A):\n"
        "    @classmethod\n    def k(cls):\n        return super().k() * 2\nb = B()", "out = x * b.k()",
        "A.k = classmethod(lambda cls: 11)"),
    Row("a setter by a base", "class A:\n    j = 1\n    @property\n    def k(self):\n        return self.j\n"
        "    @k.setter\n    def k(self, value):\n        self.j = value * 2\nclass B(A):\n    pass",
        "b = B()\nb.k = 3\nout = x * b.k",
        "A.k = property(A.k.fget, lambda self, value: setattr(self, 'j', value * 5))"),
    Row("a partial method by super", "import functools\nclass A:\n    def f(self, x, k):\n        return x * k\n"
        "    g = functools.partialmethod(f, k=2)\nclass B(A):\n    def g(self, x):\n        return super().g(x)\n"
        "n = B()", "out = n.g(x)", ("A.g = functools.partialmethod(A.f, k=5)", "A.f = lambda self, x, k: x - k")),
    Row("a Python module that answers to every name", "import types\nm = types.ModuleType('m')\nm.k = 2.0\n"
        "m.__getattr__ = lambda name: m.k * 10", "out = x * m.any", "m.k = 3.0", doors=CAPTURES),
]  # fmt: skip

ROWS = [*_NUMBERS, *(_special(name, *parts) for name, parts in _SPECIAL.items()), *_CODE]
