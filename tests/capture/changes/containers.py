"""What a container holds changes: lists, dictionaries, sets, deques, NumPy arrays, data frames."""

from __future__ import annotations

from .harness import CAPTURES, Row

# Two tensors, objects and functions that live on whatever happens to what holds them.
_KEPT = """
from collections import namedtuple
Pair = namedtuple("Pair", "a b")
class C:
    def __init__(self, k):
        self.k = k
class D:
    pass
one, two = torch.ones(4, device=dev), torch.full((4,), 5.0, device=dev)
three, seven = C(3.0), C(7.0)
def f(x):
    return x + 1
def g(x):
    return x - 1
d = D()
"""
_MAKES = "from collections import defaultdict\nv = defaultdict(lambda: 2.0, "
# What holds one of them, how the code reads it, how another one gets there.
_HOLDS = (
    ("v = (one,)", "v[0]", "v = (two,)"),
    ("v = (one, one)", "v[-1]", "v = (one, two)"),
    ("v = (one, one)", "v[1:][0]", "v = (one, two)"),
    ("v = ((one,),)", "v[0][0]", "v = ((two,),)"),
    ("v = [(one, 1)]", "v[0][0]", "v[0] = (two, 1)"),
    ("v = {'a': (1, (2.0, one))}", "v['a'][1][1]", "v['a'] = (1, (2.0, two))"),
    ("v = {'a': (1, (2.0, one))}", "v['a'][1][0]", "v['a'] = (1, (9.0, one))"),
    ("v = Pair(one, two)", "v.a", "v = v._replace(a=two)"),
    ("v = Pair(one, two)", "v[0]", "v = v._replace(a=two)"),
    ("d.v = (one,)", "d.v[0]", "d.v = (two,)"),
    ("D.v = (one,)", "d.v[0]", "D.v = (two,)"),
    ("v = (one, two)\ni = 0", "v[i]", "v = (two, two)"),
    ("v = (three,)", "v[0].k", "v = (seven,)"),
    ("v = (three, one)", "v[0].k * v[1]", "v = (three, two)"),
    ("v = (f,)", "v[0](x)", "v = (g,)"),
    ("v = [one]", "v[0]", "v = [two]"),
    ("v = {'a': one}", "v['a']", "v = {'a': two}"),
    ("v = w = (one,)", "v[0] * w[0]", "w = (two,)"),
    ("v = w = (one,)", "w[0] * v[0]", "w = (two,)"),
    ("v = w = [one]", "v[0] * w[0]", "w = [two]"),
    ("v = w = {'a': one}", "v['a'] * w['a']", "w = {'a': two}"),
    ("v = w = (3.0, one)", "v[0] * w[0]", "w = (7.0, one)"),
    ("v = {'a': (one,)}\nw = (one,)", "v['a'][0] * w[0]", "w = (two,)"),
    ("v = (one,)\nw = (two,)", "v[0] - w[0]", "v, w = w, v"),
    ("v = w = (one,)\nd.v = v", "d.v[0] * w[0]", "d.v = (two,)"),
)


def _held(given: str, read: str, change: str) -> Row:
    what = f"{given} and {change}: {read}".replace("\n", "; ")
    return Row(what, _KEPT + given, f"out = x * {read}", change)


# A class whose methods raise: reading what it holds must not call them.
_SHY = """
def no(self, *args):
    raise RuntimeError("read")
names = ["__iter__", "__getitem__", "keys", "values", "items", "copy"]
Shy = type("Shy", (dict,), dict.fromkeys(names, no))
v = {"shy": Shy(k=2.0, one=Shy(k=1.0))}
"""

_NUMBERS = "import collections\nv, w, d = [3, 1, 2], collections.deque([4, 5]), {'a': 6}"
_MOVES = (
    "v.sort()",
    "v.sort(key=lambda n: -n)",
    "v.reverse()",
    "v[0], v[1] = v[1], v[0]",
    "v.append(v.pop(0))",
    "v.append(v[0])",
    "v.insert(0, v[0] * 2)",
    "v.extend(v[:1])",
    "v[:] = v[1:] + v[:1]",
    "v += v[:1]",
    "w.rotate(1)",
    "w.appendleft(v[0])",
    "w.extend(v)",
    "d['b'] = v[0]",
    "d['b'] = d.pop('a', 0)",
    "d.update(b=v[0])",
    "d.setdefault('b', v[0])",
    "d['b'] = [v[0]]",
    "d['b'] = (v[0], 1)",
    "v.append(d['a'])",
)

ROWS = [
    Row(
        "an item of a dictionary whose class reads in its own way",
        _SHY,
        "out = x * v['shy'].get('k') + x * len(v['shy'].get('one'))",
        ("dict.update(v['shy'], k=3.0)", "dict.update(v['shy'].get('one'), b=3.0)"),
    ),
    Row("a list's item", "v = [1, 2]", "out = x * v[1]", ("v[1] = 3", "v[1] = 2.5", "v[:] = [1, 2]")),
    Row("a list's length", "v = [1, 2]", "out = x * len(v)", ("v.append(3)", "del v[0]", "v.clear()")),
    Row("a list's order", "v = [1, 2]", "out = x * v[0]", "v.reverse()"),
    Row("another list", "v = [1, 2]", "out = x * v[1]", "v = [1, 3]"),
    Row("a tuple for a list", "v = [1, 2]", "out = x * (2 if isinstance(v, list) else 3)", "v = (1, 2)"),
    Row("a nested list", "v = [[1], [2, [3]]]", "out = x * v[1][1][0]", "v[1][1][0] = 4"),
    Row("a list in a tuple", "v = (1, [2])", "out = x * v[1][0]", "v[1][0] = 3"),
    Row("one list twice", "a = [2]\nv = [a, a]", "out = x * v[0][0] + v[1][0]", ("a[0] = 3", "v[1] = [7]")),
    Row("a list that holds itself", "v = [2]\nv.append(v)", "out = x * v[1][1][0]", "v[0] = 3", doors=CAPTURES),
    Row("a list of functions", "def f(x):\n    return x * 2\nv = [f]", "out = v[0](x)", "v[0] = lambda x: x * 3"),
    Row("a list of tensors", "v = [x, x * 2]", "out = v[0] + v[1]", ("v[1] = x * 3", "v.reverse()", "v[0] = v[0][:1]")),
    Row("a dictionary's item", "v = {'a': 2}", "out = x * v['a']", ("v['a'] = 3", "v.update(a=2.5)")),
    Row("a dictionary's keys", "v = {'a': 2}", "out = x * v.get('b', 5)", ("v['b'] = 3", "del v['b']")),
    Row("a dictionary that makes items", _MAKES + "a=3.0)",
        "out = x * v['a'] + len(v)", ("v.clear()\nv['b'] = 1.0\nv['a'] = 3.0", "v['a'] = 4.0"), watch=("sorted(v)",)),
    Row("a dictionary that has lost the item that it makes", _MAKES + "a=2.0)",
        "k = len(v)\nout = x * v['a'] + k", "v.clear()", watch=("sorted(v)",), doors=CAPTURES),
    Row("a counter", "from collections import Counter\nv = Counter('aab')",
        "out = x * v['a'] + len(v)", ("del v['a']", "v['a'] = 4"), watch=("sorted(v)",)),
    Row("a dictionary's order", "v = {'a': 2, 'b': 3}",
        "out = x\nfor k, n in v.items():\n    out = out * n + (1 if k == 'a' else 0)", "v['a'] = v.pop('a')"),
    Row("a loop over a dictionary", "v = {'a': 2}", "out = x * sum(n for _, n in v.items())", ("v['b'] = 3",
        "v['a'] = 9")),
    Row("a dictionary's integer keys", "v = {1: 2}", "out = x * v[1]", "v[1] = 3"),
    Row("a dictionary's key True for 1", "v = {1: 2}", "out = x * (2 if True in [k is True for k in v] else 3)",
        "v.clear()\nv[True] = 2"),
    Row("nested dictionaries", "v = {'a': {'b': {'c': 2}}}", "out = x * v['a']['b']['c']", "v['a']['b']['c'] = 3"),
    Row("a dictionary of lists", "v = {'a': [1, 2]}", "out = x * v['a'][1]", "v['a'][1] = 3"),
    Row("a dictionary of tensors", "v = {'a': x * 2}", "out = x * v['a']", ("v['a'] = x * 3",
        "v['a'] = v['a'].double()")),
    Row("a dictionary spread into a call", "v = {'by': 2}\ndef f(x, by=1, more=0):\n    return x * by + more",
        "out = f(x, **v)", ("v['by'] = 3", "v['more'] = 4")),
    Row("a list spread into a call", "v = [2]\ndef f(x, by=1, more=0):\n    return x * by + more", "out = f(x, *v)",
        ("v[0] = 3", "v.append(4)")),
    Row("a set", "v = {1, 2}", "out = x * (2 if 2 in v else 3)", ("v.discard(2)", "v.add(2)")),
    Row("a set's sum", "v = {1, 2}", "out = x * sum(v)", "v.add(5)"),
    Row("a deque", "from collections import deque\nv = deque([1, 2], maxlen=2)", "out = x * v[0]",
        ("v.append(3)", "v.rotate(1)", "v[0] = 7")),
    Row("an array.array", "import array\nv = array.array('i', [1, 2])", "out = x * v[1]", "v[1] = 3", doors=CAPTURES),
    Row("a heap", "import heapq\nv = [3, 5, 4]\nheapq.heapify(v)", "out = x * v[0]", "heapq.heappush(v, 1)"),
    Row("a string buffer", "import io\nv = io.StringIO('a')", "out = x * len(v.getvalue())", "v.write('bcd')",
        doors=CAPTURES, allowed="refused"),
    Row("an iterator over a list", "v = [1, 2]\ndef each():\n    yield from v", "out = x * sum(each())", "v[0] = 5"),
    Row("zip and enumerate", "v = [1, 2]\nw = [3, 4]", "out = x * sum(i * a * b for i, (a, b) in enumerate(zip(v, w)))",
        ("w[1] = 5", "v.append(1)\nw.append(9)")),
    Row("sorted with a key", "v = [3, 1]\nkey = lambda n: n", "out = x * sorted(v, key=key)[0]", "key = lambda n: -n"),
    Row("a NumPy array", "import numpy as np\nv = np.ones(4, np.float32)", "out = x * torch.as_tensor(v).to(dev)",
        ("v[0] = 5", "v *= 2", "v = np.zeros(4, np.float32)")),
    Row("a NumPy array's element as a number", "import numpy as np\nv = np.array([2.0, 3.0])", "out = x * float(v[0])",
        "v[0] = 4.0"),
    Row("a NumPy array's dtype", "import numpy as np\nv = np.ones(4, np.float32)", "out = x * torch.tensor(v)",
        "v = np.ones(4)"),
    Row("a large NumPy array in place", "import numpy as np\nv = np.zeros(1_000_000, np.float32)",
        "out = x * float(v[999_999])", ("v[999_999] = 5", "v[999_999] = 0")),
    Row("a large NumPy array in place, in the middle", "import numpy as np\nv = np.zeros((1000, 1000))",
        "out = x + torch.tensor(v[500, 498:502])", "v[500, 500] = 5"),
    Row("a view of a NumPy array", "import numpy as np\nbase = np.zeros(1_000_000)\nv = base[::2]",
        "out = x * float(v[400_000])", "base[800_000] = 5"),
    Row("a NumPy array of objects", "import numpy as np\nv = np.array([2, 'a'], dtype=object)", "out = x * v[0]",
        "v[0] = 3", doors=CAPTURES, allowed="refused"),
    Row("a dictionary in a NumPy array of objects", "import numpy as np\nv = np.array([{'by': 2}, None], dtype=object)",
        "out = x * v[0]['by']", ("v[0].update(by=3)", "v[0] = {'by': 4}", "v[0]['by'] = 5"), doors=CAPTURES),
    Row("an object in a NumPy array of objects", "import numpy as np\nclass C:\n    by = 2\n"
        "v = np.array([[C(), C()]])", "out = x * v[0, 1].by", ("v[0, 1].by = 3", "v[0, 1] = C()"), doors=CAPTURES),
    Row("a dictionary in a field of a NumPy record", "import numpy as np\n"
        "v = np.array([(1, {'by': 2})], dtype=[('a', int), ('b', object)])", "out = x * v['b'][0]['by']",
        "v['b'][0]['by'] = 3", doors=CAPTURES),
    Row("a list in a pandas series", "import pandas as pd\nv = pd.Series([[2], [3]])", "out = x * v[1][0]",
        "v[1][0] = 5", doors=CAPTURES),
    Row("the factory of a defaultdict", _MAKES + "{'b': 3.0})", "out = x * v['a']\nv.pop('a')",
        ("v.default_factory = lambda: 7.0", "v.default_factory = int"), doors=CAPTURES),
    Row("what the factory of a defaultdict reads", "n = 2.0\ndef make():\n    return n\n"
        "from collections import defaultdict\nv = defaultdict(make)", "out = x * v['a']\nv.pop('a')", "n = 3.0",
        doors=CAPTURES),
    Row("a memoryview", "b = bytearray(b'ab')\nv = memoryview(b)", "out = x * v[0]", "b[0] = 99", doors=CAPTURES,
        allowed="refused"),
    Row("a pandas data frame", "import pandas as pd\nv = pd.DataFrame({'a': [1.0, 2.0]})",
        "out = x * float(v['a'].iloc[1])",
        ("v.loc[1, 'a'] = 3.0", "v['a'] = [5.0, 6.0]"), doors=CAPTURES, allowed="refused"),
    Row("a pandas series", "import pandas as pd\nv = pd.Series([1.0, 2.0])", "out = x * float(v.sum())",
        "v.iloc[0] = 3.0", doors=CAPTURES, allowed="refused"),
    *(_held(*case) for case in _HOLDS),
    *(
        Row(f"numbers moved by {move}", _NUMBERS, f"{move}\nout = x * v[0]", ("v[0] = 6", "v[0] = 7", "v[1] = 8"),
            watch=("v", "w", "d"), doors=CAPTURES, allowed="refused")
        for move in _MOVES
    ),
]  # fmt: skip
