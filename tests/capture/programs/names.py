"""Programs that read functions, modules, caches, arrays and numbers in unusual ways, and change them meanwhile."""

PROGRAMS = {
    "closure inner": """
def outer(k):
    def f(x): return torch.stack([x * k for _ in range(1)])
    def set_k(v):
        nonlocal k; k = v
    return f, set_k
f, set_k = outer(2); f = cap(f)
r = [f(x)]; set_k(5); r += [f(x)]
""",
    "closure inner obj": """
def outer():
    cfg = S(k=2)
    f = cap(lambda x: torch.stack([x * cfg.k for _ in range(1)]))
    r = [f(x)]; cfg.k = 5
    return r + [f(x)]
r = outer()
""",
    "closure inner def": """
def outer():
    k = 2
    def f(x):
        def h(y): return y * k
        return h(x)
    g = cap(f); r = [g(x)]; k = 5
    return r + [g(x)]
r = outer()
""",
    "closure same value": """
def make(k):
    def f(x): return x * k
    def set_k(v):
        nonlocal k; k = v
    return f, set_k
(a, _), (b, set_b) = make(2), make(3)
fs = [a, b]
@cap
def g(x):
    for f in fs: x = f(x)
    return x
r = [g(x)]; set_b(5); r += [g(x)]
""",
    "factory inside outside": """
def make(k):
    def f(x): return x * k
    def set_k(v):
        nonlocal k; k = v
    return f, set_k
a, set_a = make(2)
g = cap(lambda x: a(x) + make(3)[0](x))
r = [g(x)]; set_a(5); r += [g(x)]
""",
    "number isinstance": """
@cap
def f(x, k): return x * 100 if isinstance(k, torch.Tensor) else x * k
r = [f(x, 2.0), f(x, 3.0)]
""",
    "number hasattr": """
@cap
def f(x, k): return x * 100 if hasattr(k, "__len__") else x * k
r = [f(x, 2.0), f(x, 3.0)]
""",
    "same code fn": """
src = "def f(x): return x * K"
a, b = {"K": 2}, {"K": 5}
exec(src, a); exec(src, b)
f = a["f"]
g = cap(lambda x: f(x))
r = [g(x)]; f = b["f"]; r += [g(x)]
""",
    "fn identity": """
def make():
    def f(x): return x * 2
    return f
a, b = make(), make()
a.k, b.k = 2, 5
cur = a
g = cap(lambda x: x * cur.k)
r = [g(x)]; cur = b; r += [g(x)]
""",
    "fn in list default": """
def h(x, k=[2]): return x * k[0]
fs = [h]
@cap
def f(x):
    for g in fs: x = g(x)
    return x
r = [f(x)]; h.__defaults__[0][0] = 5; r += [f(x)]
""",
    "fn in list attr": """
def h(x): return x
h.k = 2
fs = {"h": h}; name = "h"
f = cap(lambda x: x * fs[name].k)
r = [f(x)]; h.k = 5; r += [f(x)]
""",
    "module in dict": """
import types
m = types.ModuleType("m"); m.K = 2
mods = {"a": m}; name = "a"
f = cap(lambda x: x * mods[name].K)
r = [f(x)]; m.K = 5; r += [f(x)]
""",
    "globals computed": """
scale_a = 2; mode = "a"
f = cap(lambda x: x * globals()["scale_" + mode])
r = [f(x)]; scale_a = 5; r += [f(x)]
""",
    "getattr module computed": """
import types
m = types.ModuleType("m"); m.lr_a = 2
phase = "a"
f = cap(lambda x: x * getattr(m, "lr_" + phase))
r = [f(x)]; m.lr_a = 5; r += [f(x)]
""",
    "import inside": """
import sys, types
sys.modules["m1"] = types.ModuleType("m1"); sys.modules["m1"].K = 2
@cap
def f(x):
    import m1
    return x * m1.K
r = [f(x)]
sys.modules["m1"] = types.ModuleType("m1"); sys.modules["m1"].K = 5
r += [f(x)]
""",
    "import_module": """
import importlib, sys, types
sys.modules["m2"] = types.ModuleType("m2"); sys.modules["m2"].K = 2
f = cap(lambda x: x * importlib.import_module("m2").K)
r = [f(x)]; sys.modules["m2"].K = 5; r += [f(x)]
""",
    "optional import": """
import sys, types
sys.modules.pop("m3", None)
@cap
def f(x):
    try: import m3
    except ImportError: return x * 2
    return x * m3.K
r = [f(x)]
sys.modules["m3"] = types.ModuleType("m3"); sys.modules["m3"].K = 5
r += [f(x)]
""",
    "lru settings": """
import functools
@functools.lru_cache
def settings(): return S(k=2)
f = cap(lambda x: x * settings().k)
r = [f(x)]; settings().k = 5; r += [f(x)]
""",
    "lru clear": """
import functools
K = 2
@functools.lru_cache
def get(): return K
get()
f = cap(lambda x: x * get())
r = [f(x)]; K = 5; get.cache_clear(); r += [f(x)]
""",
    "redefined cached property": """
import functools
class C:
    @functools.cached_property
    def k(self): return 2
f = cap(lambda x: x * C().k)
r = [f(x)]
class C:
    @functools.cached_property
    def k(self): return 5
r += [f(x)]
""",
    "bound builtin": """
table = {"a": 2}
get = table.get
f = cap(lambda x: x * get("a"))
r = [f(x)]; table["a"] = 5; r += [f(x)]
""",
    "dict view": """
d = {"a": 2}; vals = d.values()
f = cap(lambda x: x * sum(vals))
r = [f(x)]; d["a"] = 5; r += [f(x)]
""",
    "contextvar obj": """
import contextvars
cur = contextvars.ContextVar("cur"); cur.set(S(k=2))
f = cap(lambda x: x * cur.get().k)
r = [f(x)]; cur.get().k = 5; r += [f(x)]
""",
    "captured partial": """
import functools
cfg = {"k": 2}
f = cap(functools.partial(lambda c, x: x * c["k"], cfg))
r = [f(x)]; cfg["k"] = 5; r += [f(x)]
""",
    "captured singledispatch": """
import functools
@functools.singledispatch
def g(x): return x
g.register(torch.Tensor, lambda x: x * 2)
f = cap(g)
r = [f(x)]; g.register(torch.Tensor, lambda x: x * 5); r += [f(x)]
""",
    "abc register": """
import abc
class B(abc.ABC): pass
class C: pass
c = C()
f = cap(lambda x: x * 2 if isinstance(c, B) else x * 5)
r = [f(x)]; B.register(C); r += [f(x)]
""",
    "protocol": """
from typing import Protocol, runtime_checkable
@runtime_checkable
class HasF(Protocol):
    def f(self): ...
class C: pass
c = C()
f = cap(lambda x: x * 2 if isinstance(c, HasF) else x * 5)
r = [f(x)]; c.f = lambda: 1; r += [f(x)]
""",
    "pandas columns": """
import pandas as pd
df = pd.DataFrame({"a": [2.0], "b": [5.0]})
f = cap(lambda x: x * float(df["a"].iloc[0]))
r = [f(x)]; df.columns = ["b", "a"]; r += [f(x)]
""",
    "numpy masked": """
import numpy as np
m = np.ma.array([2.0, 3.0], mask=[0, 0])
f = cap(lambda x: x * float(m.sum()))
r = [f(x)]; m.mask = [0, 1]; r += [f(x)]
""",
    "format attr": """
c = S(mode="a"); table = {"a": 2, "b": 5}
f = cap(lambda x: x * table["{0.mode}".format(c)])
r = [f(x)]; c.mode = "b"; r += [f(x)]
""",
    "exists": """
import os, tempfile
path = tempfile.mktemp()
f = cap(lambda x: x * 2 if os.path.exists(path) else x * 5)
r = [f(x)]; open(path, "w").close(); r += [f(x)]
""",
    "simplequeue": """
import queue
q = queue.SimpleQueue(); [q.put(i) for i in (2, 3, 5)]
f = cap(lambda x: x * q.get())
r = [f(x), f(x)]
""",
    "decimal prec": """
import decimal
f = cap(lambda x: x * len(str(decimal.Decimal(1) / 3)))
r = [f(x)]; decimal.getcontext().prec = 5; r += [f(x)]; decimal.getcontext().prec = 28
""",
    "metaclass redefined": """
class M(type):
    def __call__(cls): o = super().__call__(); o.k = 2; return o
class C(metaclass=M): pass
f = cap(lambda x: x * C().k)
r = [f(x)]
class M(type):
    def __call__(cls): o = super().__call__(); o.k = 5; return o
class C(metaclass=M): pass
r += [f(x)]
""",
    "Decimal number": """
from decimal import Decimal
@cap
def f(x, k): return x * float(Decimal(k))
r = [f(x, 2.0), f(x, 3.0)]
""",
    "numpy in dict arg": """
import numpy as np
f = cap(lambda x, d: x * float(d["a"][0]))
d = {"a": np.full(2, 2.0)}
r = [f(x, d)]; d["a"][0] = 5; r += [f(x, d)]
""",
    "redefined callable obj": """
class D:
    def __init__(self, k): self.k = k
    def __call__(self, x): return x * self.k
class C: f = D(2)
f = cap(lambda x: C().f(x))
r = [f(x)]
class C: f = D(5)
r += [f(x)]
""",
    "np float zero": """
import numpy as np
k = np.float32(0.0)
f = cap(lambda x: x / float(k))
f = cap(lambda x: torch.copysign(x, torch.tensor(float(k), device=x.device)))
r = [f(x)]; k = np.float32(-0.0); r += [f(x)]
""",
    "partial list equal": """
import functools
a, b = [2], [2]
def g(v, x): return x * v[0]
p = functools.partial(g, a)
f = cap(lambda x: p(x))
r = [f(x)]; p = functools.partial(g, b); r += [f(x)]; b[0] = 5; r += [f(x)]
""",
    "factory inside first": """
def make(k):
    def f(x): return x * k
    def set_k(v):
        nonlocal k; k = v
    return f, set_k
a, set_a = make(2)
@cap
def g(x):
    b, _ = make(3)
    return a(x) + b(x)
r = [g(x)]; set_a(5); r += [g(x)]
""",
    "format user": """
class C: pass
c = C(); c.mode = "a"; table = {"a": 2, "b": 5}
f = cap(lambda x: x * table["{0.mode}".format(c)])
r = [f(x)]; c.mode = "b"; r += [f(x)]
""",
    "fn table identity": """
def make():
    def f(x): return x * 2
    return f
a, b = make(), make()
cur = a; table = {a: 2, b: 5}
g = cap(lambda x: x * table[cur])
r = [g(x)]; cur = b; r += [g(x)]
""",
    "perf_counter_ns": """
import time
f = cap(lambda x: x * 0 + (hash(time.perf_counter_ns()) % 10007))
a = f(x); b = f(x); r = [bool((a == b).all())]
""",
    "patched forward": """
l=nn.Linear(3,3).to(dev)
with torch.no_grad(): l.weight.fill_(.5); l.bias.fill_(1.)
keep=nn.Linear.forward; x=torch.ones(2,3,device=dev); f=cap(lambda x:l(x).detach())
r=[f(x)]; nn.Linear.forward=lambda s,x: x@s.weight; r+=[f(x)]; nn.Linear.forward=keep; r+=[f(x)]
class A(nn.Linear):
    def forward(s,x): return x*7
l.__class__=A; r+=[f(x)]
""",
    "Tensor method": """
torch.Tensor.twice=lambda s: s*2
f=cap(lambda x: x.twice()); r=[f(T(1.))]; torch.Tensor.twice=lambda s: s*3; r+=[f(T(1.))]; del torch.Tensor.twice
""",
}
