"""Random rows of `changes` about state: tensors that the code binds at each run, in every kind of place.

A row asks for properties of its states (whether one is None, its shape, its class, its attributes), reads some, and
binds others: new tensors, those of other places, containers. Then up to nine changes follow: a state is reset, gets
another shape or class, shares its tensor with another place, a container is copied or reversed.
"""

from __future__ import annotations

import random

from .changes.harness import JIT, Row

GIVEN = """
import types
from collections import namedtuple
NT = namedtuple("NT", "h c")
class O:
    pass
class K:
    s = None
class S:
    __slots__ = ("s",)
def ones(value=1.0, **options):
    return torch.full((4,), value, device=dev, **options)
def tagged(t):
    t.mark = 3
    return t
def show(state):
    return torch.utils._pytree.tree_map(lambda v: v.tolist() if isinstance(v, torch.Tensor) else v, state)
def fresh():
    o = O()
    o.s, o.pair, o.lst, o.nt = None, (ones(), ones(2.0)), [ones(), ones(2.0)], NT(ones(), ones(2.0))
    return o
o, p, sl = fresh(), fresh(), S()
sl.s = None
o.inner = p
net = nn.Module()
net.s = None
net.register_buffer("buf", None)
d = {"s": None, "m": {"h": ones(), "c": ones(2.0)}}
ls = [None, ones()]
ns = types.SimpleNamespace(s=ones(3.0))
gs = None
objs = [o, p]
"""

PLACES = (
    "o.s", "p.s", "o.inner.s", "objs[0].s", "net.s", "net.buf", "d['s']", "ls[0]", "ls[-1]", "K.s", "sl.s",
    "ns.s", "gs",
)  # fmt: skip
_QUESTIONS = (
    "(P is None)", "(0 if P is None else P.dim())", "(0 if P is None else P.numel())", "isinstance(P, nn.Parameter)",
    "(0 if P is None else P.requires_grad)", "isinstance(P, torch.Tensor)", "getattr(P, 'mark', 0)", "(P is Q)",
    "(0 if P is None else P.element_size())", "(2 if P is None or Q is None else 3)",
    "len([v for v in vars(o).values() if v is None])", "sum(v is None for v in d.values())",
    "sum([getattr(q, 's', None) is None for q in objs])", "hasattr(o, 'extra')", "len(vars(o))", "len(o.lst)",
    "len(objs)", "sum(len(vars(q)) for q in objs)", "[k for k in vars(p)].index('lst')", "list(d).index('m')",
    "(type(o.pair) is tuple)", "len(d['m'])", "sum(v is None for v in ls)", "{k: v is None for k, v in d.items()}['s']",
    "len({id(q.s) for q in objs})", "(o.lst[0] is o.pair[0])",
)  # fmt: skip
_READS = (
    "(0 if P is None else P)", "(0 if P is None else P.sum())", "o.pair[0]", "o.lst[-1]", "o.nt.c", "d['m']['h']",
    "sum(d['m'].values())", "sum(o.lst)", "sum(v.sum() for v in vars(o).values() if isinstance(v, torch.Tensor))",
    "sum([q.s.sum() for q in objs if q.s is not None])", "getattr(o, 'extra', 1.0)",
    "sum(v for v in ls if v is not None)",
)  # fmt: skip
_WRITES = (
    "P = x * VALUE", "P = x * (NUMBER)", "P = x + (TENSOR)", "P = x if P is None else P * 0.5 + x", "P = Q",
    "P, Q = Q, P",
    "P = None", "P = x", "P = ones(VALUE)", "P = Q = x + VALUE", "P = (x * 1).view(2, 2).view(4)",
    "with torch.no_grad():\n    if P is not None:\n        P.mul_(0.5)", "if P is None:\n    P = x * VALUE",
    "o.pair = (x * 1, o.pair[0])", "o.lst = [*o.lst[1:], x * 2]", "o.lst[0] = x * 3", "o.lst.append(x * 1)",
    "d['m'] = {k: v + x for k, v in d['m'].items()}", "d['m']['h'] = x * VALUE", "o.nt = o.nt._replace(h=x + 1)",
    "o.count = getattr(o, 'count', 0) + 1", "o.extra = x * VALUE", "if hasattr(o, 'extra'): del o.extra",
    "for q in objs: q.s = x * VALUE", "setattr(o, 's', x * VALUE)", "vars(o)['s'] = x * VALUE", "d.update(s=x + VALUE)",
    "o.s = p.s = x * VALUE", "p.pair = o.pair", "o.lst, p.lst = p.lst, o.lst",
    "P = Q\nQ = x * VALUE", "p.lst = o.lst\no.lst = [x * 1, x * VALUE]", "p.pair = o.pair\no.pair = (x * 1, x * VALUE)",
    "d['old'] = P", "P = o.pair[0]", "P = o.lst[0]\no.lst = [*o.lst[1:], x * 1]", "P = d['m']['c']",
)  # fmt: skip
_CHANGES = (
    "P = None", "P = ones(VALUE)", "P = torch.tensor(VALUE, device=dev)", "P = torch.full((2, 4), VALUE, device=dev)",
    "P = ones(VALUE, dtype=torch.float64)", "P = ones(VALUE, requires_grad=True)", "P = tagged(ones(VALUE))",
    "P = Q", "P = Q = ones(VALUE)", "with torch.no_grad():\n    if P is not None: P.fill_(VALUE)",
    "o = fresh()\no.inner = p", "p = fresh()",
    "objs = [o, p]", "objs.reverse()", "objs = objs[::-1]", "o.inner = o", "o.inner = p", "d = dict(d)",
    "d = dict(reversed(d.items()))", "o.__dict__ = dict(vars(o))", "o.__dict__ = dict(reversed(vars(o).items()))",
    "o.extra = VALUE", "vars(o).pop('extra', None)", "vars(p).pop('lst')\np.lst = [ones()] * 2", "o.lst = o.lst[:]",
    "o.lst.reverse()", "o.lst.append(ones(VALUE))", "o.pair = o.pair[::-1]", "o.pair = list(o.pair)",
    "d['m']['z'] = ones(VALUE)", "d['m'] = dict(reversed(d['m'].items()))", "ls = ls[::-1]", "ls.append(None)",
    "ls = [None, None]", "x = x * 2", "o.lst = p.lst", "o.pair = p.pair", "o.nt = NT(c=ones(VALUE), h=o.nt.c)",
    "o.lst[0] = o.pair[0]", "K = type('K', (), {'s': ones(VALUE)})", "net.buf = ones(VALUE)",
)  # fmt: skip
_CONTAINERS = (
    "o.pair",
    "o.lst",
    "tuple(o.nt)",
    "d['m']",
    "p.lst",
    "p.pair",
    "vars(o).get('extra')",
)
WATCH = tuple(f"show({place})" for place in (*PLACES, *_CONTAINERS))


def row(seed: int) -> Row:
    """The row of a seed."""
    rng = random.Random(seed)

    def filled(text: str) -> str:
        for name in ("TENSOR", "NUMBER"):
            choices = _READS if name == "TENSOR" else _QUESTIONS
            while name in text:
                text = text.replace(name, rng.choice(choices), 1)
        one, other = rng.sample(PLACES, 2)
        text = text.replace("P is Q", f"{one} is {other}").replace(
            "VALUE", rng.choice(["2.0", "3.0", "4.0"])
        )
        return _placed(text, one, other)

    parts = [filled(rng.choice(_QUESTIONS)) for _ in range(rng.randint(0, 2))]
    parts += [filled(rng.choice(_READS)) for _ in range(rng.randint(0, 2))]
    lines = [
        f"out = x + {' + '.join(f'({part}) * {i + 1}' for i, part in enumerate(parts)) or '1'}"
    ]
    for _ in range(rng.randint(1, 3)):
        lines.insert(rng.randint(0, len(lines)), filled(rng.choice(_WRITES)))
    if rng.random() < 0.3:
        lines.insert(rng.randint(0, len(lines)), filled("old = x if P is None else P"))
        lines.append("out = (out, old)")
    changes = tuple(filled(rng.choice(_CHANGES)) for _ in range(rng.randint(3, 9)))
    return Row(
        f"seed {seed}", GIVEN, "\n".join(lines), changes, watch=WATCH, doors=JIT, allowed="refused"
    )


def _placed(text: str, one: str, other: str) -> str:
    """The text with places for P and Q, which are names of their own."""
    words = {"P": one, "Q": other}
    parts = "".join(c if c.isalnum() or c in "_'" else f"\0{c}\0" for c in text).split("\0")
    return "".join(words.get(part, part) for part in parts)
