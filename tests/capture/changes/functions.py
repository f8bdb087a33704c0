"""The user's own code changes: a function, a method, a class or a module of theirs is redefined."""

from __future__ import annotations

from .harness import CAPTURES, Row

_MODULE = """
import importlib
def write(text):
    importlib.invalidate_caches()
    (folder / "helpers.py").write_text(text)
"""

_BODY = """
import itertools
import jax.numpy as jnp
import torch
counts = itertools.count()
class Registry(dict):
    def __iter__(self):
        return iter([*super().__iter__(), next(counts)])
    def items(self):
        raise RuntimeError
registry = Registry(start=next(counts))
def register(name):
    registry[name] = next(counts)
for name in ("a", "b"):
    register(name)
scale = 1.0 + registry["b"]
tensor = torch.arange(4.0) * 2
array = jnp.arange(3.0)
"""

ROWS = [
    Row(
        "a function",
        "def f(x):\n    return x * 2",
        "out = f(x)",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a function, thrice",
        "def f(x):\n    return x * 2",
        "out = f(x)",
        (
            "def f(x):\n    return x * 3",
            "def f(x):\n    return x + 3",
            "def f(x):\n    return x * 2",
        ),
    ),
    Row(
        "a function that another calls",
        "def g(x):\n    return x * 2\ndef f(x):\n    return g(x) + 1",
        "out = f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function three calls down",
        "def h(x):\n    return x * 2\ndef g(x):\n    return h(x)\ndef f(x):\n    return g(x) + 1",
        "out = f(x)",
        "def h(x):\n    return x * 3",
    ),
    Row(
        "a function in a comprehension",
        "def f(x):\n    return x * 2",
        "out = torch.stack([f(row) for row in x])",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a function in a generator expression",
        "def f(x):\n    return x * 2",
        "out = sum(f(row) for row in x)",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a function in a comprehension of another function",
        "def g(x):\n    return x * 2\ndef f(x):\n    return torch.stack([g(row) for row in x])",
        "out = f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function in a dictionary's comprehension",
        "def g(x):\n    return x * 2\ndef f(x):\n    return {k: g(x) for k in 'ab'}['b']",
        "out = f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function in a lambda",
        "def f(x):\n    return x * 2\nh = lambda x: f(x) + 1",
        "out = h(x)",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a function in a lambda of the code",
        "def f(x):\n    return x * 2",
        "h = lambda y: f(y) + 1\nout = h(x)",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a lambda",
        "f = lambda x: x * 2",
        "out = f(x)",
        "f = lambda x: x * 3",
    ),
    Row(
        "a function in map",
        "def f(x):\n    return x * 2",
        "out = torch.stack(list(map(f, x)))",
        "def f(x):\n    return x * 3",
    ),
    Row(
        "a function in a partial",
        "import functools\ndef g(x, by):\n    return x * by\nf = functools.partial(g, by=2)",
        "out = f(x)",
        "def g(x, by):\n    return x + by\nf = functools.partial(g, by=2)",
    ),
    Row(
        "a partial's argument",
        "import functools\ndef g(x, by):\n    return x * by\nf = functools.partial(g, by=2)",
        "out = f(x)",
        "f.keywords['by'] = 3",
    ),
    Row(
        "a recreated partial",
        "import functools\ndef g(x, by):\n    return x * by\nf = functools.partial(g, by=2)",
        "out = f(x)",
        "f = functools.partial(g, by=3)",
    ),
    Row(
        "a function that a partial's function calls",
        "import functools\ndef h(x):\n    return x\ndef g(x, by):\n    return h(x) * by\n"
        "f = functools.partial(g, by=2)",
        "out = f(x)",
        "def h(x):\n    return -x",
    ),
    Row(
        "a function that a decorator wraps",
        """
        import functools
        def doubled(g):
            @functools.wraps(g)
            def wrapper(*args):
                return 2 * g(*args)
            return wrapper
        @doubled
        def f(x):
            return h(x) + 1
        def h(x):
            return x
        """,
        "out = f(x)",
        "def h(x):\n    return -x",
    ),
    Row(
        "a decorator",
        """
        import functools
        def decorator(g):
            @functools.wraps(g)
            def wrapper(x):
                return 2 * g(x)
            return wrapper
        @decorator
        def f(x):
            return x + 1
        """,
        "out = f(x)",
        """
        def decorator(g):
            @functools.wraps(g)
            def wrapper(x):
                return 3 * g(x)
            return wrapper
        @decorator
        def f(x):
            return x + 1
        """,
    ),
    Row(
        "a function under torch.no_grad",
        "@torch.no_grad()\ndef f(x):\n    return g(x)\ndef g(x):\n    return x * 2",
        "out = f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function under functools.cache",
        "import functools\ndef g():\n    return 2\n@functools.lru_cache(None)\ndef f():\n    return g()",
        "out = x * f()",
        "def g():\n    return 3\n@functools.lru_cache(None)\ndef f():\n    return g()",
    ),
    Row(
        "functools.singledispatch",
        """
        import functools
        @functools.singledispatch
        def f(a, x):
            return x
        @f.register
        def of_int(a: int, x):
            return x * 2
        """,
        "out = f(1, x)",
        "@f.register\ndef of_int(a: int, x):\n    return x * 3",
    ),
    Row(
        "a method",
        "class C:\n    def f(self, x):\n        return x * 2\nc = C()",
        "out = c.f(x)",
        "def f(self, x):\n    return x * 3\nC.f = f",
        stale_in_dynamo=True,
    ),
    Row(
        "a method of the object",
        "class C:\n    def f(self, x):\n        return x * 2\nc = C()",
        "out = c.f(x)",
        "c.f = lambda x: x * 3",
    ),
    Row(
        "a method of a base class",
        "class B:\n    def f(self, x):\n        return x * 2\nclass C(B):\n    pass\nc = C()",
        "out = c.f(x)",
        "B.f = lambda self, x: x * 3",
        stale_in_dynamo=True,
    ),
    Row(
        "a method that overrides from now on",
        "class B:\n    def f(self, x):\n        return x * 2\nclass C(B):\n    pass\nc = C()",
        "out = c.f(x)",
        "C.f = lambda self, x: x * 3",
        stale_in_dynamo=True,
    ),
    Row(
        "super()",
        """
        class B:
            def f(self, x):
                return x * 2
        class C(B):
            def f(self, x):
                return super().f(x) + 1
        c = C()
        """,
        "out = c.f(x)",
        "B.f = lambda self, x: x * 3",
    ),
    Row(
        "a function that a method calls",
        "def g(x):\n    return x * 2\nclass C:\n    def f(self, x):\n        return g(x)\nc = C()",
        "out = c.f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function that a bound method calls",
        "def g(x):\n    return x * 2\nclass C:\n    def f(self, x):\n        return g(x)\nf = C().f",
        "out = f(x)",
        "def g(x):\n    return x * 3",
    ),
    Row(
        "a function in a class body",
        "def g():\n    return 2",
        "class C:\n    by = g()\nout = x * C.by",
        "def g():\n    return 3",
    ),
    Row(
        "a recreated class",
        "class C:\n    def f(self, x):\n        return x * 2",
        "out = C().f(x)",
        "class C:\n    def f(self, x):\n        return x * 3",
    ),
    Row(
        "an object's class",
        "class A:\n    def f(self, x):\n        return x * 2\nclass B(A):\n    def f(self, x):\n"
        "        return x * 3\nc = A()",
        "out = c.f(x)",
        "c.__class__ = B",
    ),
    Row(
        "a static method",
        "class C:\n    @staticmethod\n    def f(x):\n        return x * 2",
        "out = C.f(x)",
        "C.f = staticmethod(lambda x: x * 3)",
    ),
    Row(
        "a class method",
        "class C:\n    by = 2\n    @classmethod\n    def f(cls, x):\n        return x * cls.by",
        "out = C.f(x)",
        "def f(cls, x):\n    return x + cls.by\nC.f = classmethod(f)",
        stale_in_dynamo=True,
    ),
    Row(
        "what a class method reads",
        "class C:\n    by = 2\n    @classmethod\n    def f(cls, x):\n        return x * cls.by",
        "out = C.f(x)",
        "C.by = 3",
    ),
    Row(
        "a property",
        "class C:\n    @property\n    def by(self):\n        return 2\nc = C()",
        "out = x * c.by",
        "C.by = property(lambda self: 3)",
    ),
    Row(
        "what a property reads",
        "class C:\n    n = 1\n    @property\n    def by(self):\n        return self.n + 1\nc = C()",
        "out = x * c.by",
        "c.n = 4",
    ),
    Row(
        "a function that a property calls",
        "def g():\n    return 2\nclass C:\n    @property\n    def by(self):\n        return g()\nc = C()",
        "out = x * c.by",
        "def g():\n    return 3",
    ),
    Row(
        "functools.cached_property",
        """
        import functools
        class C:
            n = 2
            @functools.cached_property
            def by(self):
                return self.n
        c = C()
        c.by
        """,
        "out = x * c.by",
        "C.n = 3\ndel c.by",
    ),
    Row(
        "an operator of the user's class",
        "class C:\n    def __mul__(self, x):\n        return x * 2\nc = C()",
        "out = c * x",
        "C.__mul__ = lambda self, x: x * 3",
    ),
    Row(
        "a function's code",
        "def f(x):\n    return x * 2\ndef g(x):\n    return x * 3",
        "out = f(x)",
        "f.__code__ = g.__code__",
    ),
    Row(
        "a default",
        "def f(x, by=2):\n    return x * by",
        "out = f(x)",
        "f.__defaults__ = (3,)",
    ),
    Row(
        "a keyword's default",
        "def f(x, *, by=2):\n    return x * by",
        "out = f(x)",
        "f.__kwdefaults__['by'] = 3",
    ),
    Row(
        "a function's attribute",
        "def f(x):\n    return x * f.by\nf.by = 2",
        "out = f(x)",
        "f.by = 3",
    ),
    Row(
        "a function kept in a list",
        "fs = [torch.sin, torch.cos]",
        "out = fs[1](x)",
        "fs[1] = torch.exp",
    ),
    Row(
        "a function kept in a dictionary",
        "def f(x):\n    return x * 2\ntable = {'f': f}",
        "out = table['f'](x)",
        "def f(x):\n    return x * 3\ntable['f'] = f",
    ),
    Row(
        "a function found in globals()",
        "def f(x):\n    return x * 2",
        "out = globals()['f'](x)",
        "def f(x):\n    return x * 3",
        doors=CAPTURES,
        allowed="refused",
    ),
    Row(
        "a function that eval finds",
        "def f(x):\n    return x * 2",
        "out = eval('f(x)')",
        "def f(x):\n    return x * 3",
        doors=CAPTURES,
        allowed="refused",
    ),
    Row(
        "globals of text that is evaluated",
        "names = {'a': 2.0}",
        "out = eval('a * x', names, {'x': x})",
        "names['a'] = 3.0",
        doors=CAPTURES,
    ),
    Row(
        "globals of a function made from text",
        "names = {'a': 2.0}\nexec('def f(x): return a * x', names)\nf = names['f']",
        "out = f(x)",
        "names['a'] = 3.0",
        doors=CAPTURES,
    ),
    Row(
        "a library's function in the user's name",
        "from torch import sin as f",
        "out = f(x)",
        "from torch import cos as f",
    ),
    Row(
        "torch.nn.functional patched",
        "plain = F.relu",
        "out = F.relu(x)",
        "F.relu = lambda x: x * 3",
        undo="F.relu = plain",
    ),
    Row(
        "a module reloaded",
        _MODULE + "write('def f(x):\\n    return x * 2\\n')\nimport helpers",
        "out = helpers.f(x)",
        "write('def f(x):\\n    return x * 30\\n')\nimportlib.reload(helpers)",
    ),
    Row(
        "what a reloaded module's function calls",
        _MODULE + "write('def g(x):\\n    return x\\ndef f(x):\\n    return g(x) * 2\\n')\n"
        "import helpers\nfrom helpers import f",
        "out = f(x)",
        "write('def g(x):\\n    return -x * 10\\ndef f(x):\\n    return g(x) * 2\\n')\n"
        "importlib.reload(helpers)",
        stale_in_dynamo=True,
    ),
    Row(
        "a module's function replaced",
        _MODULE
        + "write('def g(x):\\n    return x\\ndef f(x):\\n    return g(x) * 2\\n')\nimport helpers",
        "out = helpers.f(x)",
        "helpers.g = lambda x: -x",
        stale_in_dynamo=True,
    ),
    Row(
        "a function imported within a function",
        _MODULE + "write('def f(x):\\n    return x * 2\\n')\nimport helpers\n"
        "def g(x):\n    from helpers import f\n    return f(x)",
        "out = g(x)",
        "helpers.f = lambda x: x * 3",
        stale_in_dynamo=True,
    ),
    # The body of the module is not captured code: it may use up an iterator, fill a container, make arrays.
    *[
        Row(
            f"the first import of a module is inside {where}",
            f"{_MODULE}\nwrite({_BODY!r})\n"
            "def g(x):\n    import helpers\n"
            "    return x * helpers.scale * helpers.tensor * helpers.array.tolist()[2]",
            code,
            ("import helpers\nhelpers.scale = 7.0", "helpers.tensor = torch.full((4,), 0.5)"),
            stale_in_dynamo=True,
        )
        for where, code in (
            ("the code", "import helpers\nout = x * helpers.scale * helpers.tensor"),
            ("a function", "out = g(x)"),
        )
    ],
    Row(
        "a recursive function",
        "def f(x, n):\n    return x if n == 0 else f(x * 2, n - 1)",
        "out = f(x, 3)",
        "def f(x, n):\n    return x if n == 0 else f(x + 2, n - 1)",
    ),
    Row(
        "an autograd.Function",
        """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 5
        w = torch.ones(4, requires_grad=True)
        """,
        "out = Scaled.apply(w * x)",
        "Scaled.backward = staticmethod(lambda ctx, g: g * 7)",
        grads="w,",
    ),
    Row(
        "the forward of an autograd.Function",
        """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2
            @staticmethod
            def backward(ctx, g):
                return g * 5
        w = torch.ones(4, requires_grad=True)
        """,
        "out = Scaled.apply(w * x)",
        "Scaled.forward = staticmethod(lambda ctx, x: x * 3)",
        grads="w,",
    ),
]
