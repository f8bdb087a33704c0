"""Programs that write, return and call in ways that a captured program must repeat or refuse."""

PROGRAMS = {
    "swallow item": """
@cap
def f(x):
    try: scale = float(x.sum())
    except Exception: scale = 100.0
    return x * scale
r = [f(x)]
""",
    "swallow iterator": """
it = iter([2, 3, 4])
def batch(): return next(it)
@cap
def f(x):
    try: k = batch()
    except Exception: k = 100
    return x * k
r = [f(x)]
""",
    "swallow number": """
@cap
def f(x, k):
    try: n = int(k)
    except Exception: n = 100
    return x * n
r = [f(x, 2.0), f(x, 3.0)]
""",
    "arg list mutated": """
@cap
def f(x, log):
    log.append(3)
    return x * 2
log = []; f(x, log); f(x, log); r = [log]
""",
    "arg dict tensor jit": """
@cap
def f(x, out):
    out["y"] = x * 2
    return x
out = {}; f(x, out); r = [sorted(out)]
""",
    "lru effect": """
import functools
n = 0
@functools.lru_cache
def get():
    global n; n += 1
    return 2
f = cap(lambda x: x * get())
f(x); f(x); f(x); r = [n]
""",
    "bound append": """
log = []; push = log.append
@cap
def f(x):
    push(3)
    return x
f(x); f(x); f(x); r = [log]
""",
    "captured generator": """
@cap
def f(x): yield x * 2
r = [list(f(x)), list(f(x)), list(f(x))]
""",
    "returned set": """
f = cap(lambda x: (x, {1}))
f(x); f(x)[1].add(9); r = [f(x)[1]]
""",
    "returned iter": """
f = cap(lambda x: (x, map(str, [1, 2])))
r = [list(f(x)[1]), list(f(x)[1])]
""",
    "returned object jit": """
class Out:
    def __init__(self, y): self.y = y
f = cap(lambda x: Out(x * 2))
a = f(x); b = f(x * 10); r = [a.y, b.y, a is b]
""",
    "assign same": """
c = S(flag=True)
@cap
def f(x):
    c.flag = True
    return x
f(x); c.flag = False; f(x); r = [c.flag]
""",
    "assign list": """
c = S(buf=None)
@cap
def f(x):
    c.buf = []
    return x
f(x); c.buf.append(1); f(x); r = [c.buf]
""",
    "assign obj": """
a, b = S(k=2), S(k=5)
c = S(cur=a)
@cap
def f(x):
    c.cur = b
    return x
f(x); c.cur = a; f(x); r = [c.cur.k]
""",
    "setattr write only": """
c = S(last=0)
@cap
def f(x):
    setattr(c, "last", 3)
    return x
f(x); c.last = 0; f(x); r = [c.last]
""",
    "class counter": """
class C:
    n = 0
    def f(self, x):
        type(self).n += 1
        return x
c = C(); g = cap(lambda x: c.f(x))
g(x); g(x); g(x); r = [C.n]
""",
    "del try": """
st = {"a": 1}
@cap
def f(x):
    try: del st["a"]
    except KeyError: return x * 5
    return x * 2
r = [f(x), f(x)]
""",
    "deque full": """
from collections import deque
d = deque([1, 2], maxlen=2)
@cap
def f(x):
    d.append(5)
    return x
f(x); f(x); r = [list(d)]
""",
    "setter twice": """
class C:
    _k = 0; sets = 0
    @property
    def k(self): return self._k
    @k.setter
    def k(self, v): self._k = v; self.sets += 1
c = C()
@cap
def f(x):
    c.k = 5
    return x
f(x); c.k = 1; f(x); r = [c.sets]
""",
    "dict setitem override": """
class D(dict):
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
d = D()
@cap
def f(x):
    d["a"] = 5
    return x
f(x); d.clear(); f(x); r = [dict(d)]
""",
    "float counter": """
c = S(t=1e15)
@cap
def f(x):
    c.t += 0.1
    return x
f(x); c.t = 0.0; f(x); r = [c.t]
""",
    "shared dict": """
c, d = S(o={"k": 1}), S()
d.o = c.o
@cap
def f(x):
    c.o["k"] = 9
    return x * d.o["k"]
r = [f(x)]; c.o = {"k": 1}; d.o = {"k": 1}; r += [f(x)]
""",
    "identity lists args": """
@cap
def f(x, a, b):
    b.append(5)
    return x * len(a)
v = [1]
r = [f(x, v, v)]
""",
    "async": """
import asyncio
@cap
async def f(x): return x * 2
r = [asyncio.run(f(x)), asyncio.run(f(x)), asyncio.run(f(x))]
""",
    "hook lost": """
it = iter([1, 2, 3]); k = 2
def batch(): return next(it)
def scale(x): return x * k
@cap
def f(x):
    try: batch()
    except Exception: pass
    return scale(x)
r = [f(x)]; k = 5; r += [f(x)]
""",
    "identity return": """
f = cap(lambda x, v: (x, v))
v = [1]; r = [f(x, v)[1] is v]
""",
    "AttrDict write": """
class AD(dict): __getattr__=dict.__getitem__; __setattr__=dict.__setitem__
c=AD(n=0)
def g(x): c.last=1; return x
g=cap(g); g(T(1.)); c.last=0; g(T(1.)); r=[c.last]
""",
    "buffer bound to another": """
class M(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("z",T(0.)); s.register_buffer("b",T(9.))
    def forward(s,x): s.b=s.z; return x+s.b
bad=0
for trial in range(6):
    m=M(); f=cap(lambda x: m(x))
    for k in range(8): bad+=f(T(0.)).item()!=0; m.b=T(float(k))
r=[bad]
""",
    "train stored": """
m=nn.Sequential(nn.Tanh())
def g(x): m.train(); return x*2
g=cap(g); g(T(1.)); m.eval(); g(T(1.)); r=[m.training]
""",
    "swap": """
class C: pass
c=C(); c.a,c.b=T(0.),T(1.)
def f(x): c.a,c.b=c.b,c.a; return x+c.a
f=cap(f); r=[f(T(0.)).item() for _ in range(4)]
""",
    "cur module": """
class N(nn.Module):
    def __init__(s): super().__init__(); s.h=nn.ModuleList([nn.Tanh(),nn.ReLU()]); s.cur=s.h[0]
    def forward(s,x,i): s.cur=s.h[i]; return s.cur(x)
n=N(); f=cap(n); r=[]
for i in (0,1,0,1): f(T(1.),i); r.append(n.cur is n.h[i])
""",
    "keeps argument": """
class C: pass
c=C(); c.last=None
def f(x): c.last=x; return x*2
f=cap(f); r=[]
for k in range(3): f(T(float(k))); r.append(c.last.item())
""",
    "own optimizer": """
class Lion(torch.optim.Optimizer):
    def __init__(s, ps, lr): super().__init__(ps, dict(lr=lr))
    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            for p in g['params']:
                if p.grad is None: continue
                st=s.state[p]
                if 'm' not in st: st['m']=torch.zeros_like(p)
                m=st['m']; p.add_((m*.9+p.grad*.1).sign(), alpha=-g['lr']); m.mul_(.99).add_(p.grad, alpha=.01)
w=nn.Parameter(T(1.,2.)); o=Lion([w],.1)
def step(x):
    o.zero_grad(); l=((w*x)**2).sum(); l.backward(); o.step(); return l.detach()
step=cap(step); r=[step(T(1.,1.)) for _ in range(4)]+[w.detach()]
""",
    "prod backward": """
w=nn.Parameter(T(2.,3.))
def f(x): w.grad=None; (w*x).prod().backward(); return w.grad
f=cap(f); r=[f(T(1.,1.))]
""",
    "embedding freq": """
w=torch.ones(6,3,device=dev,requires_grad=True)
f=cap(lambda i: nn.functional.embedding(i,w,scale_grad_by_freq=True))
f(T(0,1,5,1)).sum().backward(); r=[w.grad[:2,0]]
""",
    "lstm state tuple": """
c=nn.LSTMCell(2,2).to(dev)
with torch.no_grad(): [q.fill_(.1) for q in c.parameters()]
class H: pass
h=H(); h.hc=(torch.zeros(1,2,device=dev),torch.zeros(1,2,device=dev))
def f(x):
    hc=c(x,h.hc); h.hc=tuple(t.detach() for t in hc); return hc[0].detach()
f=cap(f); r=[f(torch.ones(1,2,device=dev)) for _ in range(3)]
""",
    "returned closure": """
@cap
def f(x):
    n = 0
    def count():
        nonlocal n; n += 1; return n
    return count
a = f(x); r = [a(), a()]; b = f(x); r += [b()]
""",
    "returned class": """
@cap
def f(x):
    class A: s = 2.0
    return A
r = [f(x).s]; f(x).s = 5.0; r += [f(x).s]
""",
}
