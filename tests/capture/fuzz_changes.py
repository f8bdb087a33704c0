"""Random rows of `changes`: what the code reads of a graph of objects, and changes between its runs.

A row reads one to four values, each along a path through classes, objects, containers, closures, functions, modules and
tensors, and may write some. Then up to nine changes follow: an attribute is set on an object or hides that of its
class, a class, a method or a base is exchanged, a container is copied, a name gets another object, a tensor is filled.
Paths meet in one object, so a change shows at places that its text does not name.
"""

from __future__ import annotations

import random

from .changes.harness import CAPTURES, JIT, Row

GIVEN = """
import dataclasses, enum, functools, types
class A:
    k = 2.0
    n = 0
    @property
    def p(self):
        return self.k * 2
    def f(self):
        return self.k + 1
    def __getitem__(self, i):
        return self.k + i
    @classmethod
    def c(cls):
        return cls.k
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return h
class B(A):
    pass
class Other:
    k = 6.0
    n = 0
    zz = 3.0
    @property
    def p(self):
        return self.k * 3
    def f(self):
        return self.k - 1
    def __getitem__(self, i):
        return self.k - i
    @classmethod
    def c(cls):
        return cls.k + 1
class C:
    k = 5.0
class M(nn.Module):
    k = 4.0
    def forward(self, x):
        return x * self.k + self.o.k
class S:
    __slots__ = ("k",)
@dataclasses.dataclass
class D:
    k: float = 2.0
    j: float = 1.0
class E(enum.Enum):
    ONE = 1.0
    TWO = 2.0
g, h, e, flag = 2.0, 3.0, E.ONE, True
a, b, c, m, s, dc = A(), B(), C(), M(), S(), D()
s.k = 3.0
a.o = C()
b.o = c
m.o = c
d = {"k": 2.0, "o": b}
l = [1.0, 2.0]
objs = [a, b]
ns = types.SimpleNamespace(k=2.0, o=a)
log, pair = [], (2.0, 3.0)
def fn(v, w=1.0):
    return v * g + w
def make():
    k = 2.0
    def get():
        return k
    def put(v):
        nonlocal k
        k = v
    return get, put
get, put = make()
part = functools.partial(fn, w=2.0)
alias = d
t = torch.ones(4)
a.t = t
d["t"] = torch.full((4,), 2.0)
ts = [t, d["t"]]
net = nn.Sequential(filled(nn.Linear(4, 4)), nn.Tanh())
drop = nn.Dropout(1.0)
drop.eval()
"""

# Numbers, along all kinds of paths.
NUMBERS = (
    "g", "h", "a.k", "A.k", "b.k", "B.k", "c.k", "C.k", "m.k", "s.k", "dc.k", "dc.j", "type(b).k", "b.zz",
    "a.o.k", "b.o.k", "m.o.k", "ns.k", "ns.o.k", "e.value", "d['k']", "d['o'].k", "d['o'].p", "alias['k']",
    "l[0]", "l[-1]", "sum(l)", "len(l)", "objs[0].k", "objs[-1].p", "len(objs)", "b.p", "a.p", "b.f()",
    "ns.o.f()", "b[1]", "a[0]", "b.c()", "B.c()", "fn(2.0)", "fn(a.k)", "part(1.0)", "get()", "m(1.0)",
    "abs(b.k)", "round(g)", "int(a.k)", "pair[0]", "len(ts)", "E['ONE'].value", "getattr(b, 'k')",
    "getattr(b, 'zz', g)", "getattr(c, 'q', h)", "d.get('k', h)", "d.get('q', h)", "d.setdefault('k', 1.0)",
    "vars(a).get('k', 1.0)", "dataclasses.astuple(dc)[0]", "dataclasses.replace(dc, j=4.0).k",
    "(a if g > 2 else b).k", "(c.k if isinstance(b, A) else a.k)", "(2 if 'k' in d else 3)",
    "(2 if hasattr(c, 'q') else 3)", "(2 if objs[0] is a else 5)", "(3 if a.k > b.k else 4)",
    "(2 if e is E.ONE else 7)", "(2 if flag else 3)", "sum(o.k for o in objs)", "max(o.k for o in objs)",
    "next(iter(objs)).k", "sum(v for v in d.values() if isinstance(v, float))", "sorted(l)[0]",
    "[v * 2 for v in l][0]", "{**d}['k']", "(lambda o: o.k)(b)", "min(a.k, b.k)",
    "(str(a.k).count('3') + 1.0)", "functools.reduce(lambda v, w: v + w, l)", "sum(map(float, pair))",
)  # fmt: skip
TENSORS = (
    "t", "a.t", "d['t']", "ts[0]", "ts[-1]", "sum(ts)", "net(x)", "drop(x)", "net[0].bias", "(t*a.k)",
    "getattr(a,'t')", "next(net.parameters())[0]",
)  # fmt: skip
WRITES = (
    "a.n += 1", "c.count = getattr(c, 'count', 0) + 1", "log.append(g)", "d['w'] = a.k", "ns.last = b.k",
    "t.add_(1)", "a.t.mul_(2)", "d['t'] = d['t'] + 1", "ts[0] = ts[0] * 2",
)  # fmt: skip
WATCH = (
    "a.n", "c.k", "len(log)", "log[-1:]", "d.get('w')", "getattr(ns, 'last', None)", "t", "a.t", "d['t']",
    "ts[0]",
)  # fmt: skip

_PLACES = (
    "g", "h", "a.k", "A.k", "b.k", "B.k", "C.k", "c.k", "a.o.k", "d['k']", "l[0]", "ns.k", "m.k", "M.k",
    "b.zz", "Other.k", "b.o.k", "d['o'].k", "objs[0].k", "c.q", "d['q']", "alias['k']", "m.o.k", "s.k", "dc.k",
    "D.k", "dc.j",
)  # fmt: skip
_CHANGES = (
    "for o in (a, b, c, m): vars(o).pop('k', None)",
    "if 'k' in vars(B): del B.k",
    "vars(b).pop('zz', None)",
    "vars(c).pop('q', None)",
    "d.pop('q', None)",
    "vars(a).update(k=VALUE)",
    "b.__dict__['k'] = VALUE",
    "setattr(b, 'k', VALUE)",
    "d.update(k=VALUE, q=VALUE)",
    "for o in objs: o.k = VALUE",
    "a = A()\na.o, a.t = C(), t",
    "b = B()\nb.o = a.o",
    "a, b = A(), B()\na.o = b.o = c\na.t = d['t']",
    "c = C()",
    "m = M()\nm.o = a",
    "ns = types.SimpleNamespace(k=VALUE, o=b)",
    "dc = D(VALUE, j=3.0)",
    "s = S()\ns.k = VALUE",
    "e = E.TWO",
    "flag = not flag",
    "pair = (VALUE, pair[0])",
    "class C:\n    k = VALUE",
    "a.o = C()",
    "b.o, m.o = C(), c",
    "ns.o = b",
    "ns.o = a",
    "d['o'] = a",
    "d['o'] = b",
    "d = dict(d)",
    "alias = d",
    "l = l[:]",
    "l.append(VALUE)",
    "if len(l) > 1: l.pop()",
    "l.reverse()",
    "objs.append(b)",
    "objs[0] = b",
    "objs[0] = a",
    "objs.reverse()",
    "objs = [b, a]",
    "if len(objs) > 1: objs.pop()",
    "b.__class__ = A",
    "b.__class__ = Other",
    "b.__class__ = B",
    "a.__class__ = Other",
    "a.__class__ = A",
    "a.__class__ = B",
    "B.__bases__ = (Other,)",
    "B.__bases__ = (A,)",
    "A.f = lambda self: self.k * VALUE",
    "B.f = lambda self: VALUE",
    "A.p = property(lambda self: VALUE)",
    "A.p = property(lambda self: self.k + VALUE)",
    "A.__getitem__ = lambda self, i: VALUE",
    "A.c = classmethod(lambda cls: VALUE)",
    "M.forward = lambda self, x: x - self.k",
    "def fn(v, w=1.0):\n    return v * VALUE + w",
    "fn.__defaults__ = (VALUE,)",
    "part = functools.partial(fn, w=VALUE)",
    "put(VALUE)",
    "get, put = make()",
    "t.fill_(VALUE)",
    "t = torch.full((4,), VALUE + 0.0)",
    "t = t.clone()",
    "a.t = t",
    "a.t = torch.full((4,), VALUE + 0.0)",
    "d['t'] = t",
    "d['t'].add_(1)",
    "ts.reverse()",
    "ts = [t]",
    "ts.append(torch.full((4,), VALUE + 0.0))",
    "net[1] = nn.ReLU()",
    "net.append(nn.Sigmoid())",
    "del net[-1]\nnet.append(nn.Tanh())",
    "with torch.no_grad(): net[0].bias.fill_(VALUE)",
    "net[0].bias = nn.Parameter(torch.ones(4))",
    "drop.train()",
    "drop.eval()",
    "drop.p = 0.0",
)
# What calls the function that reads. Each keeps something of its own between runs, or traces the function again.
_CALLERS = (
    "jaxtorch.jit(inner) if dev == 'jax' else inner",
    "jaxtorch.pure(inner) if dev == 'jax' else inner",
    "torch.compile(inner, backend='eager') if dev == 'jax' else inner",
    "torch.func.vmap(inner)",
    "functools.partial(checkpoint, inner, use_reentrant=False)",
    "functools.partial(repeat, inner)",
    "functools.partial(torch.func.functional_call, Calls(inner), {})",
)
_OF_CALLERS = """
import jaxtorch
from torch.utils.checkpoint import checkpoint
class Calls(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f
    def forward(self, v):
        return self.f(v)
def repeat(f, v):
    if dev == "jax":
        return jaxtorch.scan(lambda carry, _: (f(carry), None), v, torch.zeros(2))[0]
    return f(f(v))
def inner(v):
    return v * (TOTAL)
inner = CALLER
"""


def row(seed: int, writes: bool) -> Row:
    """The row of a seed. One that writes is for the ways of capturing that may write."""
    rng = random.Random(seed)
    reads = [
        rng.choice(NUMBERS if rng.random() < 0.8 else TENSORS) for _ in range(rng.randint(1, 4))
    ]
    total = " + ".join(f"({read}) * {i + 1}" for i, read in enumerate(reads))
    first = rng.choice(NUMBERS)
    given = GIVEN
    if rng.random() < 0.3:
        given += _OF_CALLERS.replace("TOTAL", total).replace("CALLER", rng.choice(_CALLERS))
    code = rng.choice(
        (
            f"out = x * ({total})",
            "out = x" + "".join(f"\nout = out * ({read})" for read in reads),
            f"def inner(v):\n    return v * ({total})\nout = inner(x)",
            f"if {first} > 3:\n    out = x * ({reads[0]})\nelse:\n    out = x - ({reads[-1]})",
            f"out = x\nfor v in [{', '.join(reads)}]:\n    out = out + v",
        )
    )
    if given is not GIVEN:
        code = "out = inner(x)"
    if writes:
        written = rng.sample(WRITES, rng.randint(1, 2))
        code = "\n".join([*written, code] if rng.random() < 0.5 else [code, *written])
    return Row(
        f"seed {seed}",
        given,
        code,
        tuple(_change(rng) for _ in range(rng.randint(3, 9))),
        watch=WATCH if writes else (),
        doors=JIT if writes else CAPTURES,
        allowed="refused" if writes else None,
    )


def _change(rng: random.Random) -> str:
    value = rng.choice(("2.0", "3.0", "4.0", "5.0", "7.0", "3", "6"))
    place = f"{rng.choice(_PLACES)} = VALUE"
    return (place if rng.random() < 0.4 else rng.choice(_CHANGES)).replace("VALUE", value)
