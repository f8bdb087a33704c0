"""Containers of tensors that the code binds at each run, and reads at the next: the state of a recurrent network."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from .harness import JIT, WRITES, Row

_LSTM = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = filled(nn.LSTMCell(4, 4))
        self.state = None
    def forward(self, x):
        self.state = {}(t.detach() for t in self.cell(x[None], {}))
        return self.state[0][0] + x
net = Net().to(x.device)
"""
_OBJECT = """
from collections import OrderedDict, namedtuple
State = namedtuple("State", "h c")
class C:
    pass
o = C()
o.state = {}
"""
_WATCH = "[t.tolist() for t in torch.utils._pytree.tree_leaves(o.state)]"


def _lstm(what: str, kind: str, given: str, *change: str) -> Row:
    return Row(f"a network's state: {what}", _LSTM.format(kind, given), "out = net(x)", change or "x = x * 2",
               watch=("torch.cat([*net.state])",), doors=WRITES)  # fmt: skip


def _state(what: str, first: str, code: str, *change: str, watch: str = _WATCH) -> Row:
    return Row(f"a state in an object: {what}", _OBJECT.format(first), code, change or "x = x * 2", watch=(watch,),
               doors=WRITES)  # fmt: skip


_PAIR = "(torch.ones(4, device=dev), torch.zeros(4, device=dev))"
_SWAP = "h, c = o.state\nout = h + c * x\no.state = "

# What the code asks of the state, without reading its values: (question, state that answers otherwise).
_ASKED = {
    "whether it is None": ("s is None", "None"),
    "its shape": ("0 if s is None else s.shape[0]", "torch.ones(7, device=dev)"),
    "its dtype": ("0 if s is None else s.dtype.itemsize", "torch.ones(4, device=dev).double()"),
    "whether it needs a gradient": (
        "0 if s is None else s.requires_grad",
        "torch.ones(4, device=dev).requires_grad_()",
    ),
    "its class": ("type(s) is nn.Parameter", "nn.Parameter(torch.ones(4, device=dev))"),
    "its attribute": ("getattr(s, 'mark', 0)", "tagged(torch.ones(4, device=dev))"),
    "its strides": ("0 if s is None else s.stride(0)", "torch.ones(4, 2, device=dev)[:, 0]"),
}
# What the code does with the tensor that a state held before: (code, expressions to compare).
_PREVIOUS = {
    "moved": ("p.s = o.s\no.s = x * 2\nout = x + 1", "p.s"),
    "moved and read": ("p.s = o.s\no.s = x * 2\nout = x + (0 if p.s is None else p.s)", "p.s"),
    "moved along three": ("p.t = p.s\np.s = o.s\no.s = x * 2\nout = x + 1", "p.s, p.t"),
    "moved for an argument": ("p.s = o.s\no.s = x\nout = x + 1", "p.s"),
    "moved after a write": ("o.s.add_(x)\np.s = o.s\no.s = x * 2\nout = x + 1", "p.s"),
    "moved if there is none": ("if p.s is None:\n    p.s = o.s\no.s = x * 2\nout = x + p.s", "p.s"),
    "exchanged": ("o.s, p.s = p.s, o.s\nout = x + (0 if o.s is None else o.s)", "p.s"),
    "moved into a dictionary": ("d['s'] = o.s\no.s = x * 2\nout = x + 1", "d['s']"),
    "moved into a dictionary by update": ("d.update(s=o.s)\no.s = x * 2\nout = x + 1", "d['s']"),
    "moved into a tuple": ("p.s = (o.s, x * 1)\no.s = x * 2\nout = x + 1", "p.s"),
    "moved out of a tuple": (
        "p.s, o.pair = o.pair[0], (x * 1, o.pair[0])\nout = x + 1",
        "p.s, o.pair",
    ),
    "appended": ("l.append(o.s)\no.s = x * 2\nout = x + 1", "l"),
    "returned": ("out = o.s\no.s = x * 2", "p.s"),
    "returned with the new one": ("out = (o.s, x * 3)\no.s = out[1]", "p.s"),
    "viewed and returned": ("out = o.s[:2]\no.s = x * 2", "p.s"),
    "in a tuple that is moved": (
        "p.s = o.pair\no.pair = (x * 1, x * 2)\nout = x + 1",
        "p.s, o.pair",
    ),
    "in a list that is moved": ("p.s = o.l\no.l = [x * 1]\nout = x + 1", "p.s, o.l"),
    "in a list that is moved and read": (
        "p.s = o.l\no.l = [x * 1]\nout = x + len(p.s)",
        "p.s, o.l",
    ),
    "moved in a ring": ("o.s, p.s, p.t = x * 1, o.s, p.s\nout = x + 1", "p.s, p.t"),
    "replaced by an argument": ("out = x - o.s\no.s = x", "p.s"),
    "removed": ("p.s, o.s = o.s, None\nout = x + 1", "p.s"),
}
_HOLDERS = """
class C:
    pass
o, p, d, l = C(), C(), {}, []
o.s, o.pair, o.l = torch.ones(4, device=dev) * 5, (x * 1, x * 2), []
p.s = p.t = None
"""
_SHOWN = "[t.tolist() for t in torch.utils._pytree.tree_leaves(({},)) if t is not None]"


def _previous(what: str, module: bool) -> Row:
    code, shown = _PREVIOUS[what]
    given = _HOLDERS.replace("o, p,", "o, p = nn.Module(), nn.Module()\n_,") if module else _HOLDERS
    given = given.replace("_, d, l = C(), C(), {}, []", "d, l = {}, []")
    return Row(f"a state whose tensor before is {what}{' (modules)' * module}", given, code,
               ("x = x + 1", "x = x * 2", "o.s = torch.ones(4, device=dev) * 9", "p.s = torch.ones(4, device=dev)",
                "o.s = p.s = torch.ones(4, device=dev) * 3"),
               watch=(_SHOWN.format(f"o.s, {shown}"),), doors=WRITES,
               allowed="refused" if what in ("appended", "moved into a dictionary by update") else None,
               stale_in_dynamo="argument" in what and not module)  # fmt: skip


_SLOTS = {
    "o.state": "class C:\n    pass\no = C()\no.state = None",
    "d['state']": "d = {'state': None}",
    "C.state": "class C:\n    state = None",
    "net.state": "net = nn.Module()\nnet.state = None",
    "net.buffer": "net = nn.Module()\nnet.register_buffer('buffer', None)",
}
_TAGGED = "def tagged(t):\n    t.mark = 3\n    return t\n"


def _asked(what: str, slot: str, given: str) -> Row:
    question, other = _ASKED[what]
    return Row(f"a state of which the code asks {what}: {slot}", _TAGGED + given,
               f"s = {slot}\nout = x + ({question})\n{slot} = x * 2", (f"{slot} = {other}", f"{slot} = None"),
               watch=(f"{slot}.tolist()",), doors=WRITES)  # fmt: skip


def _asked_in(what: str, container: str) -> Row:
    question, other = _ASKED[what]
    return Row(f"a state of which the code asks {what}, in a {container}", f"{_TAGGED}class C:\n    pass\n"
               f"o = C()\no.state = {container}([x * 1, x * 1])",
               f"s = o.state[1]\nout = x + ({question})\no.state = {container}([x * 2, x * 3])",
               f"o.state = {container}([x * 1, {other}])",
               watch=("[t.tolist() for t in o.state]",), doors=WRITES)  # fmt: skip


ROWS = [
    *(_asked(what, slot, given) for what, (slot, given) in product(_ASKED, _SLOTS.items())
      # A module takes a parameter's name for itself.
      if not (what == "its class" and slot.startswith("net."))),
    *(_previous(what, module) for what, module in product(_PREVIOUS, (False, True))),
    *(Row(f"a gradient from before is {what}",
          "class C:\n    pass\no = C()\no.g = None\nw = torch.ones(4, device=dev, requires_grad=True)",
          f"g = w.grad\nw.grad = None\n(w * x).sum().backward()\n{code}", ("x = x * 2", "w.grad = None", "x = x + 1"),
          watch=("None if w.grad is None else w.grad.tolist()", "None if o.g is None else o.g.tolist()"), doors=JIT,
          allowed=allowed)
      for what, code, allowed in (("returned", "out = x if g is None else g", None),
                                  ("read", "out = x if g is None else x - g", None),
                                  ("moved", "o.g = g\nout = x + 1", "refused"))),
    *(_asked_in(what, container) for what in _ASKED for container in ("tuple", "list")),
    _lstm("a tuple", "tuple", "self.state"),
    _lstm("a tuple that is taken away", "tuple", "self.state", "net.state = None"),
    _lstm("a tuple that is replaced", "tuple", "self.state",
          "net.state = (torch.ones(1, 4, device=dev), torch.zeros(1, 4, device=dev))"),
    _lstm("a tuple whose tensors are written", "tuple", "self.state", "net.state[0].mul_(2)"),
    _lstm("a tuple that is a list later", "tuple", "self.state", "net.state = list(net.state)"),
    _lstm("a list", "list", "self.state and tuple(self.state)"),
    _lstm("a list whose item is replaced", "list", "self.state and tuple(self.state)",
          "net.state[0] = net.state[1] * 2"),
    _state("a tuple", _PAIR, _SWAP + "(h * x, c + 1)"),
    _state("a named tuple", f"State(*{_PAIR})",
           "s = o.state\nout = s.h + s.c * x\no.state = State(h=s.c + x, c=s.h * 2)"),
    _state("a dictionary", "{'h': torch.ones(4, device=dev)}", "out = o.state['h'] * x\no.state = {'h': out + 1}"),
    _state("a dictionary that gets a key", "{'h': torch.ones(4, device=dev)}",
           "out = sum(o.state.values()) * x\no.state = {k: v + out for k, v in o.state.items()}",
           "o.state['c'] = x * 5"),
    replace(
        _state("an ordered dictionary in another order", "OrderedDict(a=torch.ones(4, device=dev), b=x * 2)",
               "a, b = o.state.values()\nout = a - 2 * b\n"
               "o.state = OrderedDict((k, v + x) for k, v in o.state.items())", "o.state.move_to_end('a')"),
        stale_in_dynamo=True),
    _state("nested", "(torch.ones(4, device=dev), [torch.zeros(4, device=dev)])",
           "h, (c,) = o.state\nout = h + c * x\no.state = (c + 1, [h * x])", "o.state[1][0] = x * 7"),
    _state("one that grows", "[torch.ones(4, device=dev)]", "out = sum(o.state) * x\no.state = [*o.state, out]"),
    _state("a part stays", _PAIR, _SWAP + "(h, c + x)", "o.state[0].mul_(3)"),
    _state("the parts move", _PAIR, _SWAP + "(c + x, h)"),
    _state("a history", f"(*{_PAIR}, x * 3)", "out = sum(o.state) * x\no.state = (x * 2, *o.state[:-1])",
           "o.state = o.state[::-1]"),
    replace(_state("an argument in it", _PAIR, _SWAP + "(x, c + x)", "x = x * 3"), stale_in_dynamo=True),
    _state("a constant in it", _PAIR, _SWAP + "(torch.ones(4, device=x.device), c + x)", "o.state[0].mul_(3)"),
    _state("a number in it", "(2, torch.ones(4, device=dev))", "n, h = o.state\nout = h * n\no.state = (n, h + x)",
           "o.state = (5, o.state[1])", watch="o.state[1].tolist()"),
    _state("a number that counts", "(2, torch.ones(4, device=dev))",
           "n, h = o.state\nout = h * n\no.state = (n + 1, h + x)", watch="(o.state[0], o.state[1].tolist())"),
    _state("another shape", _PAIR, _SWAP + "(h * 2, c + 1)", "o.state = (o.state[0][:1].clone(), o.state[1])"),
    _state("another dtype", _PAIR, _SWAP + "(h * 2, c + 1)", "o.state = (o.state[0].double(), o.state[1])"),
    _state("a tensor twice in the old one", "(lambda t: (t, t))(torch.ones(4, device=dev))", _SWAP + "(h * 2, c + 1)",
           "o.state = (o.state[0],) * 2"),
    _state("a tensor twice in the new one", _PAIR, _SWAP + "(c + x,) * 2", "o.state[0].mul_(2)"),
    _state("a view in it", _PAIR, _SWAP + "(torch.stack([h, c])[1], c * 2)"),
    _state("one that is not read", "None", "out = x * 2\no.state = (out, [x + 1])", "o.state = 5"),
    _state("one that other code reads too", _PAIR + "\nalias = o.state",
           "h, c = o.state\nout = h + c * x + alias[0]\no.state = (h * x, c + 1)", "alias = o.state"),
    _state("two places with one container", _PAIR + "\np = C()\np.state = o.state",
           "h, c = o.state\nk, _ = p.state\nout = h + c * x + k\no.state = (h * x, c + 1)", "p.state = o.state"),
    _state("two places that are bound to one", _PAIR + "\np = C()\np.state = None",
           "h, c = o.state\nout = h + c * x\no.state = p.state = (h * x, c + 1)", "p.state[0].mul_(2)"),
    _state("what needs a gradient", "(torch.ones(4, device=dev, requires_grad=True), x * 1)",
           _SWAP + "(h.detach() * 2, c + 1)"),
]  # fmt: skip
