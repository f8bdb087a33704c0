"""What code reaches without naming it: by `getattr`, in loops over modules, by `type(self)`, in patterns, far down."""

from __future__ import annotations

from .harness import CAPTURES, JIT, Row

_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])
        for layer in self.layers:
            layer.scale = 2.0
        self.gain = 2.0
        self.w_a = 2.0
    def forward(self, x):
        return {}
net = Net()
"""
_GETATTR = "def get(o, name, otherwise=None):\n    return getattr(o, name, otherwise)\n"
_COUNTER = """
class Meter:
    def __init__(self):
        self.n = 0
    def update(self):
        self.n += 1
    def scale(self):
        return 1.0 * self.n
def count(m):
    m.n += 1
meter = Meter()
"""
_CHAIN = """
class Wrapper:
    def __init__(self, inner, k):
        self.inner, self.k = inner, k
deepest = top = Wrapper(None, 2.0)
for _ in range(9):
    top = Wrapper(top, 1.0)
leaf = nested = {"k": 2.0}
for _ in range(9):
    nested = {"sub": nested}
def last(o):
    while o.inner is not None:
        o = o.inner
    return o.k
def bottom(c):
    while "sub" in c:
        c = c["sub"]
    return c["k"]
"""
_DATACLASS = """
import dataclasses
@dataclasses.dataclass
class C:
    k: float = 2.0
c = C()
def total(o):
    return sum(dataclasses.asdict(o).values())
"""
_DESCRIPTOR = """
class Kept:
    def __set_name__(self, owner, name):
        self.name = '_' + name
    def __get__(self, o, owner=None):
        return getattr(o, self.name)
    def __set__(self, o, value):
        setattr(o, self.name, value)
class C:
    k = Kept()
c = C()
c.k = 2.0
"""
_CLASS = """
class C:
    k = 2.0
    def by(self, x):
        return x * {}.k
c = C()
"""
_PATTERN = """
class C:
    __match_args__ = ("k",)
c = C()
c.k = 2.0
def f(x):
    match c:
        case {}:
            return x * by
"""


def _of_net(what: str, result: str, *changes: str) -> Row:
    return Row(f"a module: {what}", _NET.format(result), "out = net(x)", changes, doors=CAPTURES)


ROWS = [
    _of_net("getattr with a default", "x * getattr(self, 'gain', 1.0)", "net.gain = 7.0"),
    _of_net("getattr with a name that is computed", "x * getattr(self, 'w_' + 'ab'[0])", "net.w_a = 7.0"),
    _of_net("hasattr", "x * (5 if hasattr(self, 'flag') else 2)", "net.flag = 1", "del net.flag"),
    _of_net("vars", "x * vars(self)['gain']", "net.gain = 7.0"),
    _of_net("its layers in a comprehension", "x * sum(layer.scale for layer in self.layers)",
            "net.layers[1].scale = 7.0"),
    _of_net("all its parts", "x * sum(m.training for m in self.modules())", "net.layers[1].eval()", "net.train()"),
    _of_net("one of two", "x * (self.layers[0] if self.gain else self.layers[1]).scale", "net.layers[0].scale = 7.0",
            "net.gain = 0", "net.layers[1].scale = 5.0"),
    Row("getattr in a helper", _GETATTR + "class C: pass\nc = C()\nc.k = 2.0", "out = x * get(c, 'k')", "c.k = 7.0",
        doors=CAPTURES),
    Row("getattr of a getattr", "from types import SimpleNamespace as S\nc = S(opt=S())",
        "out = x * getattr(getattr(c, 'opt', None), 'k', 2.0)", ("c.opt.k = 7.0", "c.opt = S()"), doors=CAPTURES),
    Row("a dataclass that a helper takes apart", _DATACLASS, "out = x * total(c)", "c.k = 7.0", doors=CAPTURES),
    Row("a descriptor that knows its name", _DESCRIPTOR, "out = x * c.k", "c.k = 7.0", doors=CAPTURES),
    Row("the class of self", _CLASS.format("type(self)"), "out = c.by(x)", "C.k = 7.0", doors=CAPTURES),
    Row("the __class__ of self", _CLASS.format("self.__class__"), "out = c.by(x)", "C.k = 7.0", doors=CAPTURES),
    Row("a class pattern", _PATTERN.format("C(k=by)"), "out = f(x)", "c.k = 7.0", doors=CAPTURES),
    Row("a class pattern by position", _PATTERN.format("C(by)"), "out = f(x)", "c.k = 7.0", doors=CAPTURES),
    Row("the end of a chain of objects", _CHAIN, "out = x * last(top)", "deepest.k = 7.0", doors=CAPTURES),
    Row("the innermost of dictionaries", _CHAIN, "out = x * bottom(nested)", "leaf['k'] = 7.0", doors=CAPTURES),
    # -- counters --
    Row("a counter that another method reads", _COUNTER, "meter.update()\nout = x * meter.scale()", ("", "meter.n = 9"),
        watch=("meter.n",), doors=CAPTURES),
    Row("a counter of a helper, never read", _COUNTER, "count(meter)\nout = x * 2", ("", "meter.n = 10"),
        watch=("meter.n",), doors=CAPTURES),
    Row("a counter of a helper, read after it", _COUNTER, "count(meter)\nout = x * meter.n", ("", "meter.n = 9"),
        watch=("meter.n",), doors=CAPTURES),
    # -- a slice of the shape of a whole tensor that came before --
    Row("a slice after a whole tensor", "data = torch.arange(16.0).reshape(8, 2)\na = torch.zeros(2, 2)", "out = a.t()",
        ("a = data[2:4]", "a = data[4:6]", "a = torch.ones(2, 2)"), args="a", doors=CAPTURES),
    Row("a write to a slice after one to a whole", "data = torch.arange(16.0).reshape(8, 2)\na = torch.zeros(2, 2)",
        "a.mul_(2)\nout = a + 0", ("a = data[2:4]", "a = data[4:6]", "a = torch.ones(2, 2)"), args="a",
        watch=("data", "a"), doors=JIT),
]  # fmt: skip
