"""What code does only at its first call: lazy modules, layers made where they are used first. Objects that it makes."""

from __future__ import annotations

from .harness import CAPTURES, Row

# A layer whose parameters are the same on every device.
_FC = "def fc(n, m=4):\n    return filled(nn.Linear(n, m)).to(x.device)\n"
_NET = (
    _FC
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = None
        self.layers = nn.ModuleList()
        self.table = nn.ModuleDict()
        self.kept = {{}}
        self.tail = nn.Tanh()
    def forward(self, x):
{}
net = Net()
"""
)
_LAZY = """
class Lazy(nn.Lazy{0}):
    cls_to_become = nn.{0}
    def reset_parameters(self):
        if not self.has_uninitialized_params():
            filled(self)
net = nn.Sequential(Lazy({1}), nn.Tanh(), Lazy({1}))
"""
_IMAGES = "x = torch.linspace(-1.0, 1.0, 2 * 3 * 5 * 5).reshape(2, 3, 5, 5)\n"


def _made(what: str, *lines: str, change: str | tuple[str, ...] = "net.train(False)") -> Row:
    body = "\n".join(f"        {line}" for line in (*lines,))
    return Row(f"a layer made at the first call: {what}", _NET.format(body), "out = net(x)", change,
               grads="*net.parameters(),", doors=CAPTURES)  # fmt: skip


def _lazy(kind: str, given: str = "", sizes: str = "4", change: str = "") -> Row:
    again = given + _LAZY.format(kind, sizes)
    return Row(f"a lazy module: {kind}", again, "out = net(x)", (change or again, "net[0].weight.data.mul_(2)"),
               grads="*(p for p in net.parameters() if not nn.parameter.is_lazy(p)),", doors=CAPTURES)  # fmt: skip


_CLASS = """
class C{}:
    k = 2.0
    items = [2.0]
    table = {{"a": 2.0}}
    def by(self, x):
        return x * self.k
    def other(self, x):
        return self.by(x) * type(self).k
    def of_list(self, x):
        return x * self.items[0] * self.table["a"]
    @property
    def twice(self):
        return self.k * 2
    @classmethod
    def make(cls):
        return cls()
    @staticmethod
    def shift(x):
        return x + 1
"""


def _of_class(what: str, code: str, *changes: str) -> list[Row]:
    return [
        Row(
            f"{kind} that the code makes: {what}",
            _CLASS.format(base),
            code,
            changes,
            doors=CAPTURES,
        )
        for kind, base in (("an object", ""), ("a module", "(nn.Module)"))
    ]


ROWS = [
    *_of_class("a class attribute", "out = C().by(x)", "C.k = 7.0"),
    *_of_class("a class attribute by its class", "out = C().other(x)", "C.k = 7.0"),
    *_of_class("what a class holds", "out = C().of_list(x)", "C.items[0] = 7.0", "C.table['a'] = 3.0",
               "C.items = [1.0]"),
    *_of_class("a property", "out = x * C().twice", "C.k = 7.0", "C.twice = property(lambda self: 9.0)"),
    *_of_class("a method", "out = C().by(x)", "C.by = lambda self, x: x * 9.0"),
    *_of_class("a class method", "out = C.make().by(x)", "C.k = 7.0"),
    *_of_class("a static method", "out = C().shift(x)", "C.shift = staticmethod(lambda x: x + 7)"),
    *_of_class("its attribute set again", "c = C()\nc.k = 5.0\nout = c.by(x)", "C.k = 7.0"),
    _made("an attribute that was None", "if self.fc is None:", "    self.fc = fc(x.shape[-1])", "return self.fc(x)",
          change="net.fc = None"),
    _made("an attribute that was not there", "if not hasattr(self, 'new'):", "    self.new = fc(4)",
          "return self.new(x)", change="del net.new"),
    _made("in a try", "try:", "    return self.new(x)", "except AttributeError:", "    self.new = fc(4)",
          "return self.new(x)", change="del net.new"),
    _made("a parameter", "if not hasattr(self, 'w'):", "    self.w = nn.Parameter(torch.ones_like(x))",
          "return self.w * x", change=("net.w.data.mul_(3)", "del net.w")),
    _made("register_parameter", "if 'w' not in self._parameters:",
          "    self.register_parameter('w', nn.Parameter(torch.ones_like(x)))", "return self.w * x",
          change="net.w.data.mul_(3)"),
    _made("add_module", "if 'new' not in self._modules:", "    self.add_module('new', fc(4))", "return self.new(x)",
          change="net.new = fc(4, 1)"),
    _made("a list of modules", "if not self.layers:", "    self.layers.append(fc(4))", "return self.layers[0](x)",
          change="net.layers[0] = fc(4, 2)"),
    _made("a dictionary of modules", "if 'a' not in self.table:", "    self.table['a'] = fc(4)",
          "return self.table['a'](x)", change="del net.table['a']"),
    _made("a plain dictionary", "if 'a' not in self.kept:", "    self.kept['a'] = fc(4)", "return self.kept['a'](x)",
          change="net.kept.clear()"),
    _made("for each width", "key = str(x.shape[-1])", "if key not in self.table:",
          "    self.table[key] = fc(x.shape[-1])", "return self.table[key](x).tanh()", change="x = torch.ones(2)"),
    _made("a module of modules", "if self.fc is None:", "    self.fc = nn.Sequential(fc(4), nn.Tanh(), fc(4))",
          "return self.fc(x)", change="net.fc[0] = fc(4)"),
    _made("no parameters", "if self.fc is None:", "    self.fc = nn.Softplus(beta=2.0)", "return self.fc(x)",
          change="net.fc.beta = 3.0"),
    _lazy("Linear"),
    _lazy("Conv2d", _IMAGES, "4, 1", "net[2].eval()"),
    Row("a lazy norm", _IMAGES + "net = nn.LazyBatchNorm2d()", "out = net(x)", ("net.eval()", "net.train()"),
        watch=("net.running_mean", "net.num_batches_tracked"), grads="net.weight,", doors=CAPTURES),
    Row("a layer of a global that is made at the first call", _FC + "layers = {}\ndef f(x):\n"
        "    if 'a' not in layers:\n        layers['a'] = fc(4)\n    return layers['a'](x)", "out = f(x)",
        ("layers['a'] = fc(4, 2)", "layers.clear()"), doors=CAPTURES),
    Row("a layer that no one keeps", "def f(x):\n    return filled(nn.Linear(4, 4)).to(x.device)(x) * by\nby = 2",
        "out = f(x)", "by = 3", doors=CAPTURES),
]  # fmt: skip
