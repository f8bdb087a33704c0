"""Programs that reach objects, classes and containers in unusual ways, and change them between two calls."""

PROGRAMS = {
    "obj in list arg": """
@cap
def f(x, v): return x * v[0].k
v = [S(k=2)]
r = [f(x, v)]; v[0].k = 5; r += [f(x, v)]
""",
    "eq arg": """
class Cfg:
    def __init__(self, name, k): self.name, self.k = name, k
    def __eq__(self, other): return self.name == other.name
    def __hash__(self): return hash(self.name)
    @cap
    def f(self, x): return x * self.k
a, b = Cfg("a", 2), Cfg("a", 5)
r = [a.f(x), b.f(x)]
""",
    "frozen arg": """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Cfg:
    k: object
@cap
def f(x, c): return x.long() * c.k
a, b = Cfg(1), Cfg(1.0)
r = [str(f(x, a).dtype), str(f(x, b).dtype)]
""",
    "class swap": """
class Sum: pass
class Mean: pass
c = S(mode=Sum)
f = cap(lambda x: x.sum() if c.mode is Sum else x.mean())
r = [f(x)]; c.mode = Mean; r += [f(x)]
""",
    "isinstance class swap": """
class A: pass
class B: pass
o, kind = A(), A
f = cap(lambda x: x * 2 if isinstance(o, kind) else x * 5)
r = [f(x)]; kind = B; r += [f(x)]
""",
    "dict subclass attr": """
class Box(dict): pass
a, b = Box(), Box()
a.k, b.k = 2, 5
cur = a
f = cap(lambda x: x * cur.k)
r = [f(x)]; cur = b; r += [f(x)]
""",
    "str subclass": """
class Name(str):
    def f(self, x): return x * self.k
n = Name("a"); n.k = 2
f = cap(lambda x: n.f(x))
r = [f(x)]; n.k = 5; r += [f(x)]
""",
    "enum mutable": """
import enum
class E(enum.Enum):
    A = "a"
    def f(self, x): return x * self.k
E.A.k = 2
f = cap(lambda x: E.A.f(x))
r = [f(x)]; E.A.k = 5; r += [f(x)]
""",
    "shadow in loop": """
class C: k = 2
v = [C()]
@cap
def f(x):
    for c in v: x = x * c.k
    return x
r = [f(x)]; v[0].k = 5; r += [f(x)]
""",
    "set elements": """
a = type("O", (), {})(); a.k = 2
s = {a}
@cap
def f(x):
    for o in s: x = x * o.k
    return x
r = [f(x)]; a.k = 5; r += [f(x)]
""",
    "dict keys": """
class O: pass
a = O(); a.k = 2
d = {a: 1}
@cap
def f(x):
    for o, v in d.items(): x = x * o.k * v
    return x
r = [f(x)]; a.k = 5; r += [f(x)]
""",
    "getattr class attr computed": """
class C: k = 2
c = C(); name = "k"
f = cap(lambda x: x * getattr(c, name))
r = [f(x)]; C.k = 5; r += [f(x)]
""",
    "cached property": """
import functools
class C:
    @functools.cached_property
    def k(self): return 2
c = C()
f = cap(lambda x: x * c.k)
r = [f(x)]; c.k = 5; r += [f(x)]
""",
    "getattr then real": """
class C:
    def __getattr__(self, name): return 2
c = C()
f = cap(lambda x: x * c.k)
r = [f(x)]; c.k = 5; r += [f(x)]
""",
    "is containers": """
DEFAULT = []; v = DEFAULT
f = cap(lambda x: x * 2 if v is DEFAULT else x * 5)
r = [f(x)]; v = []; r += [f(x)]
""",
    "operator override": """
class A:
    def __call__(self, x): return x * 2
class B(A): pass
b = B()
f = cap(lambda x: b(x))
r = [f(x)]; B.__call__ = lambda self, x: x * 5; r += [f(x)]
""",
    "patched twice": """
class A:
    def __len__(self): return 2
a = A()
f = cap(lambda x: x * len(a))
r = [f(x)]; A.__len__ = lambda self: 3; r += [f(x)]; A.__len__ = lambda self: 5; r += [f(x)]
""",
    "property override": """
class A:
    @property
    def k(self): return 2
class B(A): pass
b = B()
f = cap(lambda x: x * b.k)
r = [f(x)]; B.k = 5; r += [f(x)]
""",
    "super mixin": """
class A:
    def f(self, x): return x * 2
class B(A): pass
class C(B):
    def f(self, x): return super().f(x)
c = C(); g = cap(lambda x: c.f(x))
r = [g(x)]; B.f = lambda self, x: x * 5; r += [g(x)]
""",
    "tensor attr list": """
w = torch.ones(2, device=x.device); w.tag = 2
ws = [w]
@cap
def f(x):
    for t in ws: x = x * t * t.tag
    return x
r = [f(x)]; w.tag = 5; r += [f(x)]
""",
    "param attr": """
net = torch.nn.Linear(2, 2, bias=False).to(x.device); net.weight.data.fill_(1.0); net.weight.scale = 2
@cap
def f(x):
    for n, p in net.named_parameters(): x = x * getattr(p, "scale", 1)
    return x
r = [f(x)]; net.weight.scale = 5; r += [f(x)]
""",
    "big list": """
v = [S(k=2) for _ in range(5000)]; i = 7
f = cap(lambda x: x * v[i].k)
r = [f(x)]; v[7].k = 5; r += [f(x)]
""",
    "deep chain": """
node = leaf = S(k=2, next=None)
for _ in range(40): node = S(k=0, next=node)
@cap
def f(x):
    n = node
    while n.next: n = n.next
    return x * n.k
r = [f(x)]; leaf.k = 5; r += [f(x)]
""",
    "set order": """
s = set(); s.add(0); s.add(8)
@cap
def f(x):
    for n in s: x = x * (n + 2) + 1
    return x
r = [f(x)]; s = set(); s.add(8); s.add(0); r += [f(x)]
""",
    "module method shadow": """
class M(torch.nn.Module):
    frozen = False
    def forward(self, x): return x * 2
net = torch.nn.Sequential(M(), M())
@cap
def f(x):
    for m in net:
        if not m.frozen: x = m(x)
    return x
r = [f(x)]; net[0].frozen = True; r += [f(x)]
""",
    "get then attr": """
class Cfg: lr = 2
table = {"a": Cfg()}
f = cap(lambda x: x * table.get("a").lr)
r = [f(x)]; table["a"].lr = 5; r += [f(x)]
""",
    "method shadow": """
class C:
    def f(self, x): return x * 2
v = [C()]
@cap
def g(x):
    for c in v: x = c.f(x)
    return x
r = [g(x)]; v[0].f = lambda x: x * 5; r += [g(x)]
""",
    "tensor arg attr obj": """
x.o = S(k=2)
f = cap(lambda x: x * x.o.k)
r = [f(x)]; x.o.k = 5; r += [f(x)]
""",
    "dispatch override": """
class A:
    def do_a(self, x): return x * 2
    def run(self, m, x): return getattr(self, "do_" + m)(x)
class B(A): pass
b = B(); f = cap(lambda x: b.run("a", x))
r = [f(x)]; B.do_a = lambda self, x: x * 5; r += [f(x)]
""",
    "loss made inside": """
torch.manual_seed(0)
l=nn.Linear(4,2);
with torch.no_grad(): l.weight.fill_(.1); l.bias.fill_(.2)
l.to(dev)
f=cap(lambda x,y: nn.CrossEntropyLoss()(l(x),y).detach())
r=[f(torch.ones(3,4,device=dev),T(0,1,0))]
""",
    "dict keyed by tensors": """
w=nn.Parameter(T(1.)); scale={w:2.}
f=cap(lambda x: scale[w]*(w*x).detach())
r=[f(T(1.)), f(T(2.))]; scale[w]=5.; r+=[f(T(1.))]
""",
    "AttrDict": """
class AD(dict): __getattr__=dict.__getitem__; __setattr__=dict.__setitem__
f=cap(lambda x,c: x*c.scale); r=[f(T(1.),AD(scale=2.)), f(T(1.),AD(scale=3.))]
c=AD(scale=2.); r+=[f(T(1.),c)]; c.scale=7.; r+=[f(T(1.),c)]
""",
    "getattr raises": """
class D:
    def __init__(s, d): object.__setattr__(s, 'd', d)
    def __getattr__(s, k): return s.d[k]
c=D({'k':2.}); f=cap(lambda x: x*c.k); r=[f(T(1.))]; c.d['k']=5.; r+=[f(T(1.))]
""",
    "requires_grad count": """
m=nn.Linear(3,3).to(dev)
f=cap(lambda x: x*sum(p.numel() for p in m.parameters() if p.requires_grad))
r=[f(T(1.))]; m.weight.requires_grad_(False); r+=[f(T(1.))]
""",
    "class shadow": """
class L: k=1.
os=[L(),L()]
def f(x):
    for q in os: x=x*q.k
    return x
f=cap(f); r=[f(T(1.))]; os[1].k=3.; r+=[f(T(1.))]
""",
    "submodule mult": """
m=nn.Sequential(nn.Tanh()); m[0].mult=2.
def f(x):
    for q in m.modules():
        if isinstance(q,nn.Tanh): x=x*getattr(q,"mult",1.)
    return x
f=cap(f); r=[f(T(1.))]; m[0].mult=3.; r+=[f(T(1.))]
""",
    "get_submodule": """
m=nn.Sequential(nn.Tanh()); m[0].k=2.
f=cap(lambda x: x*m.get_submodule("0").k); r=[f(T(1.))]; m[0].k=3.; r+=[f(T(1.))]
""",
    "param attrs": """
ps=[nn.Parameter(T(1.))]; ps[0].k=2.
f=cap(lambda x: x*[p.k for p in ps][0]); r=[f(T(1.))]; ps[0].k=5.; r+=[f(T(1.))]
""",
}
