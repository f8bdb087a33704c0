"""What the code does to Python itself: counters, lists, iterators, globals. It happens at each run, or is refused."""

from __future__ import annotations

from .harness import CELLS, WRITES, Row

_OBJECT = """
class C:
    n = 0
    def step(self, x):
        self.n += 1
        return x * self.n
c = C()
c.n = 0
"""

ROWS = [
    Row("a counter in an object", _OBJECT, "c.n += 1\nout = x * 2", "c.n = 10", watch=("c.n",), allowed="refused"),
    Row("a counter in an object that is used", _OBJECT, "c.n += 1\nout = x * c.n", "c.n = 10", watch=("c.n",),
        allowed="refused"),
    Row("a counter that a method counts", _OBJECT, "out = c.step(x)", "c.n = 10", watch=("c.n",), allowed="refused"),
    Row("a class's counter", _OBJECT, "C.total = getattr(C, 'total', 0) + 1\nout = x * 2", "", watch=("C.total",),
        allowed="refused"),
    Row("a global counter of a function", "n = 0\ndef f(x):\n    global n\n    n += 1\n    return x * 2",
        "out = f(x)", "n = 10",
        watch=("n",), allowed="refused"),
    Row("a global counter of a function that is used", "n = 0\ndef f(x):\n    global n\n    n += 1\n    return x * n",
        "out = f(x)", "n = 10", watch=("n",), allowed="refused"),
    Row("a counter of the code itself", "n = 0", "n += 1\nout = x * n", "n = 10", watch=("n",), allowed="refused"),
    Row("a nonlocal counter", "def make():\n    n = 0\n    def f(x):\n        nonlocal n\n        n += 1\n"
        "        return x * n\n"
        "    return f, lambda: n\nf, count = make()", "out = f(x)", "", watch=("count()",), allowed="refused"),
    Row("a function's own counter", "def f(x):\n    f.n += 1\n    return x * 2\nf.n = 0", "out = f(x)", "f.n = 10",
        watch=("f.n",), allowed="refused"),
    Row("a mutable default", "def f(x, seen=[]):\n    seen.append(1)\n    return x * len(seen)", "out = f(x)", "",
        watch=("len(f.__defaults__[0])",), allowed="refused"),
    Row("results.append of a number", "results = []", "out = x * 2\nresults.append(1)", "results.clear()",
        watch=("results",), allowed="refused"),
    Row("results.append of a tensor", "results = []", "out = x * 2\nresults.append(out)", "x = x * 3",
        watch=("results",),
        allowed="refused"),
    Row("results.append of a loss", "w = torch.ones(4, requires_grad=True)\nresults = []",
        "loss = (w * x).sum()\nresults.append(loss.detach())\nout = x * 2", "x = x * 3", watch=("results",),
        allowed="refused"),
    Row("a dictionary filled", "cache = {}", "cache['last'] = x * 2\nout = cache['last'] + 1", "x = x * 3",
        watch=("cache['last']",), allowed="refused"),
    Row("a dictionary's counter", "stats = {'n': 0}", "stats['n'] += 1\nout = x * stats['n']", "stats['n'] = 10",
        watch=("stats",), allowed="refused"),
    Row("a memo", "memo = {}\ndef f(x, k):\n    if k not in memo:\n        memo[k] = k * 2\n    return x * memo[k]",
        "out = f(x, 2)", ("memo[2] = 7", "memo.clear()"), watch=("memo",), allowed="refused"),
    Row("a memo that is full", "memo = {2: 4}\ndef f(x, k):\n    if k not in memo:\n        memo[k] = k * 2\n"
        "    return x * memo[k]", "out = f(x, 2)", "memo[2] = 7", watch=("memo",)),
    Row("a set filled", "seen = set()", "seen.add(len(seen))\nout = x * len(seen)", "seen.clear()",
        watch=("len(seen)",),
        allowed="refused"),
    Row("a deque rotated", "from collections import deque\nd = deque([1, 2, 3])", "d.rotate(1)\nout = x * d[0]", "",
        watch=("list(d)",), allowed="refused"),
    Row("a Counter counts", "from collections import Counter\nc = Counter()", "c['a'] += 1\nout = x * c['a']",
        "c.clear()",
        watch=("c['a']",), allowed="refused"),
    Row("a defaultdict fills itself", "from collections import defaultdict\nd = defaultdict(int)",
        "out = x * (d['a'] + 2)",
        "d['a'] = 3", watch=("len(d)",), allowed="refused"),
    Row("a list sorted", "v = [3, 1, 2]", "v.sort()\nout = x * v[0]", "v.insert(0, 7)", watch=("v",),
        allowed="refused"),
    Row("a list popped", "v = [1, 2, 3, 4, 5, 6, 7, 8]", "out = x * v.pop()", "", watch=("v",), allowed="refused"),
    Row("a NumPy array written", "import numpy as np\nv = np.zeros(2)", "v[0] += 1\nout = x * float(v[0])", "v[0] = 10",
        watch=("v.tolist()",), allowed="refused",
        stale_in_dynamo=True),
    Row("a large NumPy array written", "import numpy as np\nv = np.zeros(100_000)", "v[99_999] += 1\nout = x * 2", "",
        watch=("v[99_999].item()",), allowed="refused",
        stale_in_dynamo=True),
    Row("a module's counter", "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = 0\n"
        "    def forward(self, x):\n        self.n += 1\n        return x * self.n\nnet = N()", "out = net(x)",
        "net.n = 10",
        watch=("net.n",), allowed="refused"),
    Row("a module keeps its last output", "class N(nn.Module):\n    def forward(self, x):\n        self.last = x * 2\n"
        "        return self.last + 1\nnet = N()", "out = net(x)", "x = x * 3", watch=("net.last",), allowed="refused"),
    Row("a module keeps a list of outputs", "class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.kept = []\n    def forward(self, x):\n        self.kept.append(x * 2)\n        return x + 1\n"
        "net = N()",
        "out = net(x)", "x = x * 3", watch=("net.kept",), allowed="refused"),
    Row("a flag that is set once", "class C:\n    ready = False\nc = C()",
        "if not c.ready:\n    c.ready = True\n    out = x * 2\nelse:\n    out = x * 3", "c.ready = False",
        watch=("c.ready",),
        allowed="refused"),
    Row("a module's attribute made at first", "class N(nn.Module):\n    scale = None\n    def forward(self, x):\n"
        "        if self.scale is None:\n            self.scale = 3\n        return x * self.scale\nnet = N()",
        "out = net(x)",
        "net.scale = 5", watch=("net.scale",), allowed="refused"),
    Row("requires_grad_ in the code", "w = torch.ones(4)", "w.requires_grad_(not w.requires_grad)\nout = x * 2", "",
        watch=("w.requires_grad",), allowed="refused"),
    Row("train() in the code", "net = nn.Dropout(1.0)", "net.train(not net.training)\nout = net(x)", "",
        watch=("net.training",), allowed="refused"),
    Row("a hook put on in the code", "net = nn.ReLU()\ndef hook(m, i, o):\n    return o * 2",
        "h = net.register_forward_hook(hook)\nout = net(x)\nh.remove()", "def hook(m, i, o):\n    return o * 3",
        watch=("len(net._forward_hooks)",)),
    Row("a module's attribute put back", "class C:\n    by = 2\nc = C()\nc.by = 2\ndef f(x):\n    return x * c.by",
        "old, c.by = c.by, 5\nout = f(x)\nc.by = old", "c.by = 3", watch=("c.by",)),
    Row("the environment written", "import os", "os.environ['ROW_N'] = str(int(os.environ.get('ROW_N', 0)) + 1)\n"
        "out = x * 2", "",
        watch=("os.environ['ROW_N']",), allowed="refused", stale_in_dynamo=True),
    Row("the default dtype set in the code", "", "torch.set_default_dtype(torch.float64)\nout = torch.ones(2) * 2",
        "torch.set_default_dtype(torch.float32)", watch=("str(torch.get_default_dtype())",), allowed="refused"),
    Row("a print", "", "print('row')\nout = x * 2", "", allowed="refused"),
    # -- iterators --
    *(
        Row(f"an iterator: {what}", given, code, "", doors=("eager", *CELLS, "pure", "jit"), allowed="never")
        for what, given, code in [
            ("next", "batches = iter([2, 3, 4, 5, 6])", "out = x * next(batches)"),
            ("next of tensors", "batches = iter([x, x * 2, x * 3, x * 4])", "out = x * next(batches)"),
            ("next with a default", "batches = iter([2, 3])", "out = x * next(batches, 9)"),
            ("a generator", "def g():\n    n = 1\n    while True:\n        n += 1\n        yield n\nbatches = g()",
             "out = x * next(batches)"),
            ("a generator in a function", "def g():\n    n = 1\n    while True:\n        n += 1\n        yield n\n"
            "batches = g()\n"
             "def f(x):\n    return x * next(batches)", "out = f(x)"),
            ("a generator's send", "def g():\n    n = 1\n    while True:\n        n += yield n\nbatches = g()\n"
            "next(batches)",
             "out = x * batches.send(2)"),
            ("a loop over an iterator", "batches = iter([2, 3])", "out = x\nfor n in batches:\n    out = out * n"),
            ("a loop that breaks", "batches = iter([2, 3, 4, 5, 6])", "for n in batches:\n    out = x * n\n    break"),
            ("itertools.count", "import itertools\nids = itertools.count(2)", "out = x * next(ids)"),
            ("itertools.cycle", "import itertools\nids = itertools.cycle([2, 3, 4])", "out = x * next(ids)"),
            ("enumerate", "pairs = enumerate([2, 3, 4, 5, 6])", "out = x * next(pairs)[1]"),
            ("zip", "pairs = zip([2, 3, 4, 5], [1, 1, 1, 1])", "out = x * next(pairs)[0]"),
            ("map", "numbers = map(int, '23456')", "out = x * next(numbers)"),
            ("a DataLoader's", "from torch.utils.data import DataLoader\n"
            "data = iter(DataLoader([1.0, 2.0, 3.0, 4.0], 1))\n",
             "out = x * next(data).to(dev)"),
            ("a file's lines", "(folder / 't').write_text('2\\n3\\n4\\n5\\n')\nf = open(folder / 't')",
            "out = x * int(next(f))"),
            ("an iterator in a list", "its = [iter([2, 3, 4, 5])]", "out = x * next(its[0])"),
            ("an iterator in an object", "class C:\n    pass\nc = C()\nc.it = iter([2, 3, 4, 5])",
            "out = x * next(c.it)"),
            ("unpacking", "batches = iter([2, 3, 4, 5, 6, 7, 8, 9])",
            "a, b = next(batches), next(batches)\nout = x * a * b"),
            ("zip with a range", "batches = iter([2, 3, 4, 5, 6, 7, 8, 9, 10])",
             "for n, _ in zip(batches, range(1)):\n    out = x * n"),
        ]
    ),
    Row("an object's __next__", "class I:\n    n = 1\n    def __next__(self):\n        self.n += 1\n"
        "        return self.n\ni = I()", "out = x * next(i)", "i.n = 7", watch=("i.n",), allowed="refused"),
    Row("an iterator under torch.compile", "batches = iter([2, 3, 4, 5, 6])", "out = x * next(batches)", "",
        doors=("eager", "compile")),
    Row("a generator made and used up in the code", "", "g = (i for i in range(4))\nout = x * sum(g)", "x = x * 2"),
    Row("an iterator made in the code", "v = [2, 3]", "it = iter(v)\nout = x * next(it) + next(it)", "v[0] = 5",
        allowed="refused"),  # a cell would have to return it
    Row("a write under a name", "v = x * 2", "v += 1\nout = v * 2", "v = x * 3", watch=("v",), doors=WRITES),
]  # fmt: skip
