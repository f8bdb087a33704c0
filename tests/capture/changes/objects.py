"""An attribute changes: of the user's objects, of library objects that hold settings, of classes and modules."""

from __future__ import annotations

from .harness import CAPTURES, Row

USER_DICT = "from collections import UserDict\nclass C(UserDict):\n    pass\nc = C(by=2)"
PROXY = """
import weakref
class C:
    by = 2
    def __getitem__(self, key):
        return self.by
def by(c):
    return c.by
c, d = C(), C()
p = weakref.proxy(c)
"""
NAMED = """
import importlib, sys, types
cfg = types.ModuleType("made_cfg")
sys.modules["made_cfg"] = cfg
cfg.by, cfg.more, cfg.values = 2, 5, [6]
class C:
    name = "by"
c = C()
names = ["by", "by"]
"""
# What is enumerated, and how the values of the names that begin with `k_` are added up.
_ENUMERATED = (
    ("vars of a class", "class C:\n    k_a = 2", "vars(C).items()"),
    ("__dict__ of a class", "class C:\n    k_a = 2", "C.__dict__.items()"),
    ("vars of an object's class", "class C:\n    k_a = 2\nc = C()", "vars(type(c)).items()"),
    ("vars of classes in a list", "class C:\n    k_a = 2\nv = [C]", "((n, i) for c in v for n, i in vars(c).items())"),
    ("dir of a class", "class C:\n    k_a = 2", "((n, getattr(C, n)) for n in dir(C))"),
    ("dir of an object", "class C:\n    k_a = 2\nc = C()", "((n, getattr(c, n)) for n in dir(c))"),
    ("dir of an object of a subclass", "class C:\n    k_a = 2\nclass D(C):\n    pass\nc = D()",
     "((n, getattr(c, n)) for n in dir(c))"),
    ("dir of a module", "class C(nn.Module):\n    k_a = 2\nc = C()",
     "((n, getattr(c, n)) for n in dir(c) if n[:2] == 'k_')"),
    ("getmembers of a class", "import inspect\nclass C:\n    k_a = 2", "inspect.getmembers(C)"),
    ("getmembers of an object", "import inspect\nclass C:\n    k_a = 2\nc = C()", "inspect.getmembers(c)"),
    ("vars of a Python module", "import types\nC = types.ModuleType('cfg')\nC.k_a = 2", "vars(C).items()"),
    ("dir of a Python module", "import types\nC = types.ModuleType('cfg')\nC.k_a = 2",
     "((n, getattr(C, n)) for n in dir(C))"),
)  # fmt: skip


def _enumerated(what: str, given: str, items: str) -> Row:
    code = f"out = x * sum(v for n, v in {items} if n.startswith('k_'))"
    return Row(what, given, code, ("C.k_b = 3", "C.k_a = 7", "del C.k_b"), stale_in_dynamo=True)


METACLASS = """
class O:
    by = 2
class M(type):
    by, table, o = 2, {"a": 2}, O()
    def __getitem__(cls, key):
        return cls.table[key]
    def get(cls):
        return 2
class A(metaclass=M):
    pass
"""
LOGGER = """
import logging
logger = logging.getLogger("jaxtorch_test_of_levels")
child = logger.getChild("child")
adapter = logging.LoggerAdapter(child, {})
logging.disable(0)
logger.disabled = False
logger.setLevel(10)
"""
CLASS = "class C:\n    pass\nc = C()\nc.by = 2"

ROWS = [
    Row("an attribute", CLASS, "out = x * c.by", ("c.by = 3", "c.by = 2.5", "c.by = 2")),
    Row("an attribute in a function", CLASS + "\ndef f(x):\n    return x * c.by", "out = f(x)", "c.by = 3"),
    Row("an attribute of an attribute", CLASS + "\nc.d = C()\nc.d.by = 2", "out = x * c.d.by", "c.d.by = 3"),
    Row("another object in an attribute", CLASS + "\nc.d = C()\nc.d.by = 2", "out = x * c.d.by",
        "c.d = C()\nc.d.by = 3"),
    Row("another object of the name", CLASS, "out = x * c.by", "c = C()\nc.by = 3"),
    Row("an attribute that appears", CLASS, "out = x * getattr(c, 'extra', 2)", "c.extra = 3"),
    Row("an attribute that goes", CLASS, "out = x * (2 if hasattr(c, 'by') else 3)", "del c.by"),
    Row("getattr", CLASS + "\nname = 'by'\nc.other = 5", "out = x * getattr(c, name)",
        ("c.by = 3", "name = 'other'")),
    Row("getattr in a loop over objects", CLASS + "\nname = 'by'\nc.other = 5\nv = [c]",
        "out = x * sum(getattr(o, name) for o in v)", ("c.by = 3", "name = 'other'", "c.other = 7")),
    Row("vars", CLASS, "out = x * vars(c)['by']", "c.by = 3"),
    Row("__dict__", CLASS, "out = x * c.__dict__['by']", "c.by = 3"),
    Row("operator.attrgetter", CLASS + "\nimport operator\nget = operator.attrgetter('by')", "out = x * get(c)",
        "c.by = 3"),
    Row("a loop over an object's attributes", CLASS + "\nc.shift = 1", "out = sum(x * v for v in vars(c).values())",
        ("c.by = 3", "c.more = 10")),
    Row("a class attribute", "class CFG:\n    betas = (0.5, 0.25)", "out = x * CFG.betas[1]",
        "CFG.betas = (0.5, 0.75)"),
    Row("a class attribute through an object", "class C:\n    by = 2\nc = C()", "out = x * c.by",
        ("C.by = 3", "c.by = 5")),
    Row("a class attribute that is a list", "class C:\n    sizes = [1, 2]", "out = x * C.sizes[1]",
        "C.sizes[1] = 3"),
    Row("a class attribute that is a dictionary", "class C:\n    sizes = {'a': 2}", "out = x * C.sizes['a']",
        "C.sizes['a'] = 3"),
    Row("a base class's attribute", "class A:\n    by = 2\nclass B(A):\n    pass\nb = B()", "out = x * b.by",
        ("A.by = 3", "B.by = 4"), stale_in_dynamo=True),
    Row("a class within a class", "class A:\n    class B:\n        by = 2", "out = x * A.B.by", "A.B.by = 3"),
    Row("a metaclass", "class M(type):\n    @property\n    def by(cls):\n        return 2\nclass A(metaclass=M):\n"
        "    pass", "out = x * A.by", "M.by = property(lambda cls: 3)"),
    Row("a class whose metaclass answers to every name", "class M(type):\n    def __getattr__(cls, name):\n"
        "        return 2\nclass A(metaclass=M):\n    pass\na = A()\na.by = 2", "out = x * a.by", "a.by = 3",
        doors=CAPTURES),
    Row("an attribute of a metaclass", METACLASS, "out = x * A.by", ("M.by = 3", "A.by = 4", "del A.by"),
        stale_in_dynamo=True),
    Row("an attribute of a metaclass, in a loop", METACLASS + "v = [A]", "out = x * sum(c.by for c in v)",
        ("M.by = 3", "A.by = 4", "del A.by"), stale_in_dynamo=True),
    Row("an attribute of a metaclass, by an object's class", METACLASS + "a = A()", "out = x * type(a).by",
        ("M.by = 3", "A.by = 4"), stale_in_dynamo=True),
    Row("a container of a metaclass", METACLASS, "out = x * A.table['a']",
        ("M.table['a'] = 3", "A.table = {'a': 4}", "A.table['a'] = 5"), stale_in_dynamo=True),
    Row("a container of a metaclass, in its method", METACLASS, "out = x * A['a']",
        ("M.table['a'] = 3", "A.table = {'a': 4}", "A.table['a'] = 5"), stale_in_dynamo=True),
    Row("an object of a metaclass", METACLASS, "out = x * A.o.by", ("M.o.by = 3", "A.o = O()", "A.o.by = 4"),
        stale_in_dynamo=True),
    Row("a method of a metaclass", METACLASS, "out = x * A.get()",
        ("A.get = staticmethod(lambda: 3)", "del A.get", "M.get = lambda cls: 4"), stale_in_dynamo=True),
    Row("an enum's value", "import enum\nclass E(enum.Enum):\n    A = 2\n    B = 3\nclass C:\n    mode = E.A",
        "out = x * C.mode.value", "C.mode = E.B"),
    Row("a slot", "class C:\n    __slots__ = ('by',)\nc = C()\nc.by = 2", "out = x * c.by", "c.by = 3"),
    Row("an inherited slot", "class A:\n    __slots__ = ('by',)\nclass B(A):\n    __slots__ = ()\nc = B()\nc.by = 2",
        "out = x * c.by", "c.by = 3"),
    Row("a dataclass", "from dataclasses import dataclass\n@dataclass\nclass C:\n    by: int = 2\nc = C()",
        "out = x * c.by", "c.by = 3"),
    Row("a dataclass with slots", "from dataclasses import dataclass\n@dataclass(slots=True)\nclass C:\n"
        "    by: int = 2\nc = C()", "out = x * c.by", "c.by = 3"),
    Row("a frozen dataclass", "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    by: int = 2\n"
        "c = C()", "out = x * c.by", "c = dataclasses.replace(c, by=3)"),
    Row("a dataclass of dataclasses", "from dataclasses import dataclass, field\n@dataclass\nclass A:\n"
        "    by: int = 2\n@dataclass\nclass C:\n    a: A = field(default_factory=A)\nc = C()", "out = x * c.a.by",
        "c.a.by = 3"),
    Row("dataclasses.asdict", "import dataclasses\n@dataclasses.dataclass\nclass C:\n    by: int = 2\nc = C()",
        "out = x * dataclasses.asdict(c)['by']", "c.by = 3"),
    Row("__getattr__", "class C:\n    def __init__(self):\n        self.store = {'by': 2}\n"
        "    def __getattr__(self, name):\n        return self.__dict__['store'][name]\nc = C()", "out = x * c.by",
        "c.store['by'] = 3"),
    Row("__getitem__", "class C:\n    def __init__(self):\n        self.store = {'by': 2}\n"
        "    def __getitem__(self, name):\n        return self.store[name]\nc = C()", "out = x * c['by']",
        "c.store['by'] = 3"),
    Row("__call__", "class C:\n    by = 2\n    def __call__(self, x):\n        return x * self.by\nc = C()",
        "out = c(x)", ("c.by = 3", "C.__call__ = lambda self, x: x + self.by")),
    Row("__len__ and __iter__", "class C:\n    def __init__(self):\n        self.items = [1, 2]\n"
        "    def __len__(self):\n        return len(self.items)\n    def __iter__(self):\n"
        "        return iter(self.items)\nc = C()", "out = x * len(c) + sum(c)", "c.items.append(3)"),
    Row("__bool__ and __eq__", "class C:\n    on = True\n    def __bool__(self):\n        return self.on\nc = C()",
        "out = x if c else -x", "c.on = False"),
    Row("a descriptor", "class D:\n    by = 2\n    def __get__(self, obj, owner=None):\n        return self.by\n"
        "class C:\n    d = D()\nc = C()", "out = x * c.d", "D.by = 3"),
    Row("argparse.Namespace", "import argparse\nargs = argparse.Namespace(by=2)", "out = x * args.by",
        ("args.by = 3", "args.by = None\nargs.by = 4")),
    Row("SimpleNamespace", "from types import SimpleNamespace\nc = SimpleNamespace(a=SimpleNamespace(by=2))",
        "out = x * c.a.by", "c.a.by = 3"),
    Row("UserDict", "from collections import UserDict\nc = UserDict(by=2)", "out = x * c['by']", "c['by'] = 3"),
    Row("UserList", "from collections import UserList\nc = UserList([1, 2])", "out = x * c[1]", "c[1] = 3"),
    Row("ChainMap", "from collections import ChainMap\nc = ChainMap({}, {'by': 2})", "out = x * c['by']",
        ("c.maps[1]['by'] = 3", "c['by'] = 4"), stale_in_dynamo=True),
    Row("a subclass of UserDict", USER_DICT, "out = x * c['by']",
        ("c['by'] = 3", "c = C(by=4)", "c.data = {'by': 5}")),
    Row("a subclass of UserDict, with get, in, len and values", USER_DICT,
        "out = x * c.get('by', 1) * len(c) + ('more' in c) + sum(c.values())", ("c['more'] = 3", "del c['by']")),
    Row("a subclass of UserDict that overrides a method",
        "from collections import UserDict\nclass C(UserDict):\n    def __getitem__(self, key):\n"
        "        return super().__getitem__(key)\nc = C(by=2)", "out = x * c['by']", "c['by'] = 3"),
    Row("a subclass of UserDict with a tensor", USER_DICT + "\nc['by'] = torch.ones(4)",
        "out = x * c['by'].to(x.device)", ("c['by'].add_(1)", "c['by'] = torch.zeros(4)")),
    Row("a subclass of UserDict in a module", USER_DICT + "\nclass M(nn.Module):\n    def forward(self, x):\n"
        "        return x * self.config['by']\nm = M()\nm.config = c", "out = m(x)", "c['by'] = 3"),
    Row("a subclass of UserDict as an argument", USER_DICT, "out = x * c['by']", "c['by'] = 3", args="x, c"),
    Row("a subclass of UserList", "from collections import UserList\nclass C(UserList):\n    pass\nc = C([1, 2])",
        "out = x * c[1] + sum(c)", ("c[1] = 3", "c.append(4)")),
    Row("a subclass of ChainMap",
        "from collections import ChainMap\nclass C(ChainMap):\n    pass\nc = C({}, {'by': 2})", "out = x * c['by']",
        ("c.maps[1]['by'] = 3", "c['by'] = 4"), stale_in_dynamo=True),
    Row("a subclass of string.Template",
        "import string\nclass C(string.Template):\n    pass\nc = C('$by')", "out = x * float(c.substitute(by=2))",
        "c.template = '3'", stale_in_dynamo=True),
    Row("a subclass of ast.NodeVisitor", "import ast\nclass C(ast.NodeVisitor):\n    by = 2\n"
        "    def visit_Name(self, node):\n        return self.by\nc = C()\nnode = ast.Name('a')",
        "out = x * c.visit(node)", ("c.by = 3", "C.visit_Name = lambda self, node: 7"), doors=CAPTURES),
    Row("a subclass of ContextDecorator, which counts", "import contextlib\nclass C(contextlib.ContextDecorator):\n"
        "    n, by = 0, 2\n    def __enter__(self):\n        self.n += 1\n    def __exit__(self, *error):\n"
        "        pass\nc = C()", "with c:\n    out = x * c.by", "c.by = 3", watch=("c.n",), doors=CAPTURES),
    Row("a torch dataset", "from torch.utils.data import Subset\nc = Subset([1.0, 2.0, 5.0], [1, 2])",
        "out = x * c[0]", ("c.indices[0] = 0", "c.indices = [2]")),
    Row("a subclass of a torch dataset", "from torch.utils.data import Subset\nclass C(Subset):\n    pass\n"
        "c = C([1.0, 2.0, 5.0], [1, 2])", "out = x * c[0]", ("c.indices[0] = 0", "c.indices = [2]")),
    Row("a distribution", "c = torch.distributions.Normal(torch.zeros(4, device=dev), 1.0, validate_args=False)",
        "out = c.log_prob(x)", "c.loc = torch.ones(4, device=dev)"),
    Row("defaultdict", "from collections import defaultdict\nc = defaultdict(int, by=2)", "out = x * c['by']",
        "c['by'] = 3"),
    Row("OrderedDict", "from collections import OrderedDict\nc = OrderedDict(a=2, b=3)",
        "out = x * next(iter(c.values()))", ("c['a'] = 4", "c.move_to_end('a')"),
        stale_in_dynamo=True),
    Row("Counter", "from collections import Counter\nc = Counter('aab')", "out = x * c['a']", "c.update('a')"),
    Row("MappingProxyType", "from types import MappingProxyType\nd = {'by': 2}\nc = MappingProxyType(d)",
        "out = x * c['by']", "d['by'] = 3"),
    Row("a named tuple", "from typing import NamedTuple\nclass C(NamedTuple):\n    a: int\n    by: int\nc = C(1, 2)",
        "out = x * c.by", "c = c._replace(by=3)"),
    Row("a dict subclass with attributes", "class Box(dict):\n    __getattr__ = dict.__getitem__\n"
        "    __setattr__ = dict.__setitem__\nc = Box(by=2)", "out = x * c.by", "c.by = 3"),
    Row("a list subclass with attributes", "class L(list):\n    by = 2\nc = L([1, 2])", "out = x * c.by + c[0]",
        ("c.by = 3", "c[0] = 5")),
    Row("a contextvar", "import contextvars\nv = contextvars.ContextVar('v', default=2)", "out = x * v.get()",
        "v.set(3)"),
    Row("a contextvar that is no longer set", "import contextvars\nv = contextvars.ContextVar('v')\n"
        "token = v.set({'by': 2})\ndef by():\n    try:\n        return v.get()['by']\n    except LookupError:\n"
        "        return 9", "out = x * by()", ("v.reset(token)", "token = v.set({'by': 3})"), doors=CAPTURES),
    Row("a logger's level", LOGGER, "out = x * (2.0 if logger.isEnabledFor(10) else 3.0)",
        ("logger.setLevel(30)", "logger.setLevel(10)", "logging.disable()", "logging.disable(0)",
         "logger.disabled = True")),
    Row("the level of a logger's parent", LOGGER, "out = x * child.getEffectiveLevel()", "logger.setLevel(30)"),
    Row("the level of an adapter", LOGGER, "out = x * adapter.isEnabledFor(10)", "logger.setLevel(30)"),
    Row("a thread's local", "import threading\nc = threading.local()\nc.by = 2", "out = x * c.by", "c.by = 3"),
    Row("a weak reference", CLASS + "\nimport weakref\nr = weakref.ref(c)", "out = x * r().by", "c.by = 3"),
    Row("a weak proxy", PROXY, "out = x * p.by", ("c.by = 3", "p = weakref.proxy(d)", "d.by = 4")),
    Row("a weak proxy, passed on", PROXY, "out = x * by(p)", ("c.by = 3", "p = weakref.proxy(d)", "d.by = 4")),
    Row("a weak proxy and getattr", PROXY, "out = x * getattr(p, 'by')",
        ("c.by = 3", "p = weakref.proxy(d)", "d.by = 4")),
    Row("a weak proxy's item", PROXY, "out = x * p[0]", ("c.by = 3", "p = weakref.proxy(d)", "d.by = 4")),
    Row("a weak proxy in a list", PROXY + "v = [p]", "out = x * sum(o.by for o in v)",
        ("c.by = 3", "v[0] = weakref.proxy(d)", "d.by = 4")),
    Row("a weak proxy as an argument", PROXY, "out = x * p.by", ("c.by = 3", "p = weakref.proxy(d)", "d.by = 4"),
        args="x, p", doors=CAPTURES),
    Row("a weak proxy of a set", "import weakref\nv = {1, 2}\np = weakref.proxy(v)", "out = x * len(p)", "v.add(5)",
        doors=CAPTURES),
    Row("types.ModuleType", "import sys, types\ncfg = types.ModuleType('made_cfg')\nsys.modules['made_cfg'] = cfg\n"
        "cfg.by = 2", "out = x * cfg.by", "cfg.by = 3"),
    Row("types.ModuleType in a function", "import sys, types\ncfg = types.ModuleType('made_cfg')\n"
        "sys.modules['made_cfg'] = cfg\ncfg.by = 2\ndef f(x):\n    import made_cfg\n    return x * made_cfg.by",
        "out = f(x)", "cfg.by = 3", stale_in_dynamo=True),
    Row("a module's constant", "import importlib\n(folder / 'cfgmod.py').write_text('B = 2\\n')\n"
        "importlib.invalidate_caches()\nimport cfgmod", "out = x * cfgmod.B", "cfgmod.B = 3"),
    Row("a constant of a package's module", "import importlib\n(folder / 'cfgpkg').mkdir()\n"
        "(folder / 'cfgpkg' / '__init__.py').write_text('')\n(folder / 'cfgpkg' / 'deep.py').write_text('B = 2\\n')\n"
        "importlib.invalidate_caches()\nimport cfgpkg.deep", "out = x * cfgpkg.deep.B", "cfgpkg.deep.B = 3"),
    Row("a module's object", "import importlib\n"
        "(folder / 'cfgmod.py').write_text('class C:\\n    by = 2\\nc = C()\\n')\n"
        "importlib.invalidate_caches()\nimport cfgmod\ndef f(x):\n    return x * cfgmod.c.by", "out = f(x)",
        ("cfgmod.c.by = 3", "cfgmod.C.by = 4\ndel cfgmod.c.by")),
    Row("a name imported from a module", "import importlib\n(folder / 'cfgmod.py').write_text('B = [2]\\n')\n"
        "importlib.invalidate_caches()\nfrom cfgmod import B", "out = x * B[0]", "B[0] = 3"),
    Row("an attribute that a module gets", "import types\ncfg = types.ModuleType('cfg')",
        "out = x * getattr(cfg, 'by', 2) + hasattr(cfg, 'shift')", ("cfg.by = 3", "cfg.shift = 1", "del cfg.by"),
        stale_in_dynamo=True),
    Row("an attribute that a module of a file gets", "import importlib\n(folder / 'cfgmod.py').write_text('a = 1\\n')\n"
        "importlib.invalidate_caches()\nimport cfgmod", "out = x * getattr(cfgmod, 'by', 2)", "cfgmod.by = 3",
        stale_in_dynamo=True),
    Row("an attribute that a module gets, as an argument", "import types\ncfg = types.ModuleType('cfg')",
        "out = x * getattr(cfg, 'by', 2)", ("cfg.by = 3", "del cfg.by"), args="x, cfg", stale_in_dynamo=True),
    Row("a field of a C structure", "import ctypes\nclass C(ctypes.Structure):\n"
        "    _fields_ = [('by', ctypes.c_double)]\nc = C(2.0)", "out = x * c.by", "c.by = 3.0", doors=CAPTURES),
    Row("a field of a C structure, as an argument", "import ctypes\nclass C(ctypes.Structure):\n"
        "    _fields_ = [('by', ctypes.c_double)]\nc = C(2.0)", "out = x * c.by", "c.by = 3.0", args="x, c",
        doors=CAPTURES),
    Row("a C number", "import ctypes\nc = ctypes.c_double(2.0)", "out = x * c.value", "c.value = 3.0", doors=CAPTURES),
    Row("a decimal context", "import decimal\nc = decimal.Context(prec=3)", "out = x * c.prec", "c.prec = 5",
        doors=CAPTURES),
    Row("a slice that holds a tensor", "v = slice(torch.tensor(1), None)", "out = x[v].sum()", "v.start.add_(1)",
        args="x, v", doors=("eager", "pure", "jit"), allowed="refused"),
    Row("a memoryview as an argument", "v = memoryview(bytearray(b'ab'))", "out = x * v[0]", "v[0] = 5", args="x, v",
        doors=("eager", "pure", "jit")),
    Row("a Python module's attribute of a name in an object", NAMED, "out = x * getattr(cfg, c.name)",
        ("cfg.by = 3", "c.name = 'more'", "cfg.more = 4"), stale_in_dynamo=True),
    Row("a Python module's attribute of a name in a list", NAMED, "out = x * sum(getattr(cfg, n) for n in names)",
        ("cfg.by = 3", "names[1] = 'more'", "cfg.more = 4"), stale_in_dynamo=True),
    Row("a Python module's attribute of a name in objects", NAMED + "v = [c]\n",
        "out = x * sum(getattr(cfg, o.name) for o in v)", ("cfg.by = 3", "c.name = 'more'", "cfg.more = 4"),
        stale_in_dynamo=True),
    Row("a Python module's attribute of a name that is an argument", NAMED + "name = 'by'\n",
        "out = x * getattr(cfg, name)", ("cfg.by = 3", "name = 'more'", "cfg.more = 4"), args="x, name",
        stale_in_dynamo=True),
    Row("a Python module's attribute that appears, of a name in an object", NAMED + "c.name = 'new'\n",
        "out = x * getattr(cfg, c.name, 2)", ("cfg.new = 3", "del cfg.new"), stale_in_dynamo=True),
    Row("a Python module's list of a name in an object", NAMED + "c.name = 'values'\n",
        "out = x * getattr(cfg, c.name)[0]", "cfg.values[0] = 7", stale_in_dynamo=True),
    Row("import_module and a name in an object", NAMED,
        "out = x * getattr(importlib.import_module('made_cfg'), c.name)",
        ("cfg.by = 3", "c.name = 'more'", "cfg.more = 4"), stale_in_dynamo=True),
    Row("a module's constant, imported in the code", "import math as m\nplain = m.pi",
        "import math\nout = x * math.pi", "m.pi = 3.0", undo="m.pi = plain", doors=CAPTURES),
    Row("a module's constant, imported in the code as another name", "import math as m\nplain = m.pi",
        "import math as n\nout = x * n.pi", "m.pi = 3.0", undo="m.pi = plain", doors=CAPTURES),
    Row("a module's constant, imported in the code from it", "import math as m\nplain = m.pi",
        "from math import pi\nout = x * pi", "m.pi = 3.0", undo="m.pi = plain", doors=CAPTURES),
    Row("a library's constant", "import math\nplain = math.pi", "out = x * math.pi", "math.pi = 3.0",
        undo="math.pi = plain", doors=CAPTURES, allowed="refused"),
    Row("a config of transformers",
        """
        import transformers
        config = transformers.PretrainedConfig(by=2)
        """, "out = x * config.by", "config.by = 3"),
    Row("a config that a library's module reads",
        """
        from transformers import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
        config = GPT2Config(n_embd=4, resid_pdrop=0.0, activation_function="relu")
        class Scaled(GPT2MLP):
            def forward(self, x):
                return super().forward(x) * self.config.scale
        model = filled(Scaled(8, config))
        model.config = config
        config.scale = 2
        """, "out = model(x[None])", ("config.scale = 3", "model.act = nn.Tanh()")),
    Row("a setting that a library's attention reads",
        """
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertSelfOutput, BertIntermediate
        config = BertConfig(hidden_size=4, intermediate_size=8, hidden_act="relu", hidden_dropout_prob=0.0)
        model = filled(BertIntermediate(config))
        """, "out = model(x[None])", "model.intermediate_act_fn = nn.Tanh()"),
    *(_enumerated(*case) for case in _ENUMERATED),
]  # fmt: skip
