"""A tensor that was there gets other memory or another geometry in place, and stays the same object."""

from __future__ import annotations

from .harness import CAPTURES, Row

_SQUARE = "m = torch.arange(9.0).reshape(3, 3)\nkeep = m\n"
_WIDE = "m = torch.arange(6.0).reshape(2, 3)\nv = m[:]\nkeep = m\n"
_LAYER = "net = filled(nn.Linear(4, 4))\nholder = [net]\n"
_OPTIMIZER = _LAYER + "opt = torch.optim.SGD(net.parameters(), lr=0.1)\n"
# What moves a tensor `m` of three by three: the same shape, another order in memory.
_SAME_SHAPE = {
    "t_": "m.t_()",
    "transpose_": "m.transpose_(0, 1)",
    "swapaxes_": "m.swapaxes_(0, 1)",
    "as_strided_": "m.as_strided_((3, 3), (1, 3))",
    "data transposed": "m.data = m.data.t()",
    "data of another": "m.data = torch.eye(3)",
    "data a part of another": "m.data = torch.arange(20.0).reshape(4, 5)[1:, 1:4]",
    "set_": "m.set_(m.t())",
    "set_ of another": "m.set_(torch.eye(3))",
}
_ANOTHER_SHAPE = {
    "t_": "m.t_()",
    "unsqueeze_": "m.unsqueeze_(0)",
    "resize_": "m.resize_(1, 3)",
    "resize_ and grow": "m.resize_(3, 3).fill_(2.0)",
    "data of another": "m.data = torch.ones(3, 2)",
    "data of another type": "m.data = torch.ones(2, 3, dtype=torch.float64)",
    "set_": "m.set_(torch.ones(5))",
    "as_strided_": "m.as_strided_((2, 2), (1, 1))",
}


def _row(what: str, given: str, code: str, change: str) -> Row:
    return Row(f"moved: {what}", given, code, (change, "x += 1"), doors=CAPTURES)


ROWS = [
    *(_row(f"the order, by {how}", _SQUARE, "out = (m * 2).reshape(-1)[:4] * x", change)
      for how, change in _SAME_SHAPE.items()),
    *(_row(f"the shape, by {how}", _WIDE, "out = (m * 2).reshape(-1)[-1] * x", change)
      for how, change in _ANOTHER_SHAPE.items()),
    *(_row(f"only its shape is read, {how}", _WIDE, "out = x * m.shape[0] + m.dim()", change)
      for how, change in _ANOTHER_SHAPE.items()),
    *(_row(f"in an object, {how}", "class C: pass\nc = C()\n" + _SQUARE + "c.m = m", "out = (c.m * 1)[0, :3].sum() * x",
           change) for how, change in _SAME_SHAPE.items()),
    _row("a view that is read beside it", _WIDE, "out = (m.sum() + v.reshape(-1)[1]) * x", "v.t_()"),
    _row("a view, though not what it is a view of", _WIDE, "out = (m.sum() + v.reshape(-1)[1]) * x", "m.t_()"),
    _row("a parameter's data transposed", _LAYER, "out = net(x)", "net.weight.data = net.weight.data.t()"),
    _row("a parameter's data, another", _LAYER, "out = net(x)", "net.weight.data = torch.eye(4)"),
    Row("moved: a parameter tied by its data", _LAYER + "other = filled(nn.Linear(4, 4), 2)", "out = net(x) + other(x)",
        "net.weight.data = other.weight.data.t()", doors=CAPTURES, allowed="refused"),
    _row("a parameter's type", _LAYER, "out = net(x.to(net.weight.dtype)).to(x.dtype)", "net.double()"),
    _row("a buffer", _LAYER + "net.register_buffer('m', torch.arange(9.0).reshape(3, 3))",
         "out = net(x) + (net.m * 1).reshape(-1)[1]", "net.m.t_()"),
    Row("moved: a parameter that a step trains", _OPTIMIZER,
        "opt.zero_grad()\nloss = net(x).square().mean()\nloss.backward()\nopt.step()\nout = loss.detach()",
        ("net.weight.data = net.weight.data.t().clone()", "net.weight.data = torch.eye(4)"),
        doors=("eager", "%%jit", "jit"), watch=("net.weight",)),
]  # fmt: skip
