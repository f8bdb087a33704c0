"""Objects that the code creates and puts outside itself for a while, and reads there; and objects that it finds.

Code that collects something puts an empty container into an attribute or a context variable, runs a model whose hooks
append to it, and takes it away again. What it creates is no dependency. What it only moves is one, however it got it.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from .harness import CAPTURES, Row


class Kind(NamedTuple):
    """An object that holds a tensor: how it is made, how `c` gets the tensor `t`, and where the tensor is then."""

    make: str
    put: str
    get: str
    given: str = ""


_SLOTS = "class S:\n    __slots__ = ('h',)\n    def __init__(self):\n        self.h = []"
_DATA = """
import dataclasses
@dataclasses.dataclass(slots={})
class C:
    h: list = dataclasses.field(default_factory=list)
"""
_COLLECTOR = """
class C:
    def __init__(self):
        self.h = []
    def add(self, t):
        self.h.append(t)
    def get(self):
        return self.h[0]
"""

KINDS = {
    "a list": Kind("[]", "c.append(t)", "c[0]"),
    "a dictionary": Kind("{}", "c['a'] = t", "c['a']"),
    "a list in a dictionary": Kind("{'h': []}", "if 'h' in c.keys(): c['h'].append(t)", "c['h'][0]"),
    "lists in lists": Kind("{'a': {'b': [[]]}}", "c['a']['b'][0].append(t)", "c['a']['b'][0][0]"),
    "a deque": Kind("collections.deque()", "c.append(t)", "c[0]", "import collections"),
    "a tuple": Kind("([],)", "c[0].append(t)", "c[0][0]"),
    "a named tuple": Kind("T([])", "c.h.append(t)", "c.h[0]",
                          "import collections\nT = collections.namedtuple('T', 'h')"),
    "an object with slots": Kind("S()", "c.h.append(t)", "c.h[0]", _SLOTS),
    "a slot": Kind("S()", "c.h = t", "c.h", _SLOTS),
    "a data class": Kind("C()", "c.h.append(t)", "c.h[0]", _DATA.format(False)),
    "a data class with slots": Kind("C()", "c.h.append(t)", "c.h[0]", _DATA.format(True)),
    "a namespace": Kind("types.SimpleNamespace(h=[])", "c.h.append(t)", "c.h[0]", "import types"),
    "an attribute of a namespace": Kind("types.SimpleNamespace()", "c.h = t", "c.h", "import types"),
    "a defaultdict": Kind("collections.defaultdict(list)", "c['a'].append(t)", "c['a'][0]", "import collections"),
    "a user's dictionary": Kind("D(a=[])", "c['a'].append(t)", "c['a'][0]", "class D(dict): pass"),
    "a user's list": Kind("L()", "c.append(t)", "c[0]", "class L(list): pass"),
    "a UserDict": Kind("collections.UserDict(a=[])", "c['a'].append(t)", "c['a'][0]", "import collections"),
    "an object": Kind("C()", "c.add(t)", "c.get()", _COLLECTOR),
    "an object in a list": Kind("[C()]", "c[0].add(t)", "c[0].get()", _COLLECTOR),
    "an object with slots in a list": Kind("[S()]", "c[0].h.append(t)", "c[0].h[0]", _SLOTS),
}  # fmt: skip


class Place(NamedTuple):
    """A place outside the code: what sets it up, a statement that puts `made` there, how it is read and cleared."""

    given: str
    store: str
    read: str
    clear: str


_BOX = "class Box:\n    value = None\nbox = Box()\n"
_VARIABLE = "import contextvars\nvariable = contextvars.ContextVar('variable', default=None)"

PLACES = {
    "an attribute": Place(_BOX + "box.value = None", "box.value = made", "box.value", "box.value = None"),
    "a new attribute": Place(_BOX, "box.fresh = made", "box.fresh", "del box.fresh"),
    "a class": Place(_BOX, "Box.value = made", "Box.value", "Box.value = None"),
    "a module": Place("net = nn.Identity()\nnet.value = None", "net.value = made", "net.value", "net.value = None"),
    "an item": Place("table = {'value': None}", "table['value'] = made", "table['value']", "table['value'] = None"),
    "a new item": Place("table = {}", "table['value'] = made", "table['value']", "del table['value']"),
    "a stack": Place("stack = []", "stack.append(made)", "stack[-1]", "stack.pop()"),
    "a global": Place("current = None", "current = made", "current", "current = None"),
    "a context variable": Place(_VARIABLE, "variable.set(made)", "variable.get()", "variable.set(None)"),
    "a variable of the thread": Place("import threading\nlocal = threading.local()\nlocal.value = None",
                                      "local.value = made", "local.value", "local.value = None"),
}  # fmt: skip

# How code finds a dictionary `d` that existed before it.
ROUTES = {
    "a cached result": "import functools\nfind = functools.lru_cache(None)(lambda: d)",
    "a list in a cached result": "import functools\ncached = functools.lru_cache(None)(lambda: [d])\n"
        "def find(): return cached()[0]",
    "a generator": "def produced():\n    yield d\ndef find(): return next(produced())",
    "a weak reference": "import weakref\nclass D(dict): pass\nd = D(d)\nreference = weakref.ref(d)\n"
        "def find(): return reference()",
    "an itemgetter": "import operator\nget, l = operator.itemgetter(0), [d]\ndef find(): return get(l)",
    "vars": "class C: pass\nc = C()\nc.d = d\ndef find(): return vars(c)['d']",
    "getattr": "class C: pass\nc = C()\nc.dictionary = d\ndef find(): return getattr(c, 'dict' + 'ionary')",
    "a copy of an object": "import copy\nclass C: pass\nc = C()\nc.d = d\ndef find(): return copy.copy(c).d",
    "a copy of a list": "l = [d]\ndef find(): return list(l)[0]",
    "a sorted list": "l = [d]\ndef find(): return sorted(l, key=len)[0]",
    "max": "l = [d]\ndef find(): return max(l, key=len)",
    "reduce": "import functools\nl = [d, {}]\ndef find(): return functools.reduce(lambda a, b: a, l)",
    "zip": "l = [d]\ndef find(): return next(zip(l))[0]",
    "a comprehension": "l = [d]\ndef find(): return [e for e in l][0]",
    "a computed index": "l = [{}, d]\ndef find(): return l[len(l) - 1]",
    "a loop": "l = [d]\ndef find():\n    for e in l:\n        return e",
    "dict.get": "t = {'k': d}\ndef find(): return t.get('k')",
    "setdefault": "t = {'k': d}\ndef find(): return t.setdefault('k', {})",
    "a method": "class C:\n    def __init__(self): self._d = d\n    def get(self): return self._d\n"
        "c = C()\ndef find(): return c.get()",
    "a property": "class C:\n    def __init__(self): self._d = d\n    @property\n    def p(self): return self._d\n"
        "c = C()\ndef find(): return c.p",
    "__getattr__": "class C:\n    def __getattr__(self, name): return d\nc = C()\ndef find(): return c.anything",
    "a default": "def find(e=d): return e",
    "a partial": "import functools\nfind = functools.partial(lambda e: e, d)",
    "a context variable": "import contextvars\nv = contextvars.ContextVar('v')\nv.set(d)\ndef find(): return v.get()",
    "the default of a context variable": "import contextvars\nv = contextvars.ContextVar('v', default=d)\n"
        "def find(): return v.get()",
    "lists in lists": "l = [[[[d]]]]\ndef find():\n    e = l\n    while isinstance(e, list):\n        e = e[0]\n"
        "    return e",
    "objects in a list": "class C: pass\na, b = C(), C()\na.b, b.d, l = b, d, [a]\n"
        "def find(): return l[int(len(l) - 1)].b.d",
    "a set": "class C: pass\nc = C()\nc.d, s = d, {c}\ndef find(): return next(iter(s)).d",
}  # fmt: skip

_FOUND = "out = x * find()['scale']"
_SCALE = "d = {'scale': 2.0}\n"


def _created(kind: Kind, place: Place) -> tuple[str, str]:
    """What sets a row up, and its code."""
    given = "\n".join([
        kind.given,
        place.given,
        "k = 2.0",
        f"def put(c, t):\n    {kind.put}",
        f"def get(c):\n    return {kind.get}",
        f"def inner(x):\n    put({place.read}, x * k)\n    return x.sin()",
    ])  # fmt: skip
    code = f"made = {kind.make}\n{place.store}\ny = inner(x)\nout = y + get({place.read})\n{place.clear}\nmade = None"
    return given, code


ROWS = [
    *(
        Row(f"{kind} that the code creates, in {place}", *_created(KINDS[kind], PLACES[place]), "k = 3.0")
        for kind, place in product(KINDS, PLACES)
    ),
    *(
        Row(f"{kind} that the code creates, given to a function", f"{k.given}\nk = 2.0\ndef put(c, t):\n    {k.put}\n"
            f"def get(*, c):\n    return {k.get}", f"c = {k.make}\nput(c, x * k)\nout = x + get(c=c)", "k = 3.0")
        for kind, k in KINDS.items()
    ),
    *(
        Row(f"a dictionary found by {route}", _SCALE + given, _FOUND, ("d['scale'] = 3.0", "d['scale'] = 5.0"),
            doors=CAPTURES)
        for route, given in ROUTES.items()
    ),
    *(
        Row(f"a dictionary found by {route}, moved into {place}",
            f"{_SCALE}{given}\n{PLACES[place].given}\ndef inner(x):\n    return x * {PLACES[place].read}['scale']",
            f"made = find()\n{PLACES[place].store}\nout = inner(x)\n{PLACES[place].clear}\nmade = None",
            ("d['scale'] = 3.0", "d['scale'] = 5.0"), doors=CAPTURES)
        for (route, given), place in product(ROUTES.items(), PLACES)
    ),
]  # fmt: skip
