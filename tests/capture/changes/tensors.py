"""Tensors that the code finds in its globals and closures change: in place, replaced, with another shape or dtype."""

from __future__ import annotations

from .harness import CAPTURES, PURE, WRITES, Row

_ON_CPU = "v = torch.ones(4, device='cpu')\n"
_CLOSURE = """
def make(v):
    def f(x):
        return x * v
    def change(new):
        nonlocal v
        v = new
    return f, change
v = torch.ones(4)
f, change = make(v)
"""

ROWS = [
    Row("a global tensor", "v = x * 2", "out = x + v", ("v = x * 3", "v.add_(1)", "v[0] = 7", "v = torch.ones(1)")),
    Row("a global tensor's dtype", "v = x * 2", "out = x + v", ("v = v.double()", "v = v.long()", "v = v.float()")),
    Row("a global tensor's strides", "v = torch.arange(4.0).reshape(2, 2)", "out = x.reshape(2, 2) + v", "v = v.t()"),
    Row("a tensor in a closure", _CLOSURE, "out = f(x)", ("v.add_(1)", "change(v * 3)", "change(torch.ones(1))",
        "change(v.double())", "change(5.0)"), doors=CAPTURES),
    Row("a tensor in a function's global", "v = x * 2\ndef f(x):\n    return x + v", "out = f(x)",
        ("v.mul_(2)", "v = x * 3", "v = torch.ones(1)")),
    Row("a tensor in a default", "v = torch.ones(4)\ndef f(x, by=v):\n    return x * by", "out = f(x)",
        ("v.add_(1)", "f.__defaults__ = (v * 3,)")),
    Row("a tensor in an object", "class C:\n    pass\nc = C()\nc.v = x * 2", "out = x + c.v",
        ("c.v = x * 3", "c.v.add_(1)", "c.v = torch.ones(1)")),
    Row("a tensor in a class", "class C:\n    v = x * 2", "out = x + C.v", ("C.v = x * 3", "C.v += 1")),
    Row("a number in a tensor's place", "v = x * 2", "out = x + v", ("v = 2", "v = None or x")),
    Row("a tensor for None", "v = None", "out = x if v is None else x + v", ("v = x * 2", "v = None")),
    Row("a tensor that appears in a list", "vs = []", "out = sum(vs, x)", ("vs.append(x * 2)", "vs.append(x * 3)",
        "vs[0] = vs[1]", "vs.clear()")),
    Row("tensors in a dictionary of an object", "class C:\n    pass\nc = C()\nc.vs = {'a': x * 2}",
        "out = sum(c.vs.values(), x)", ("c.vs['a'] = x * 3", "c.vs['b'] = x", "c.vs['b'].add_(1)")),
    Row("two names of one tensor", "v = x * 2\nw = v", "out = v + w", ("v += 1", "w = v.clone()", "w += 1")),
    Row("a tensor and its view", "v = x * 2\nw = v[:2]", "out = v.sum() + w", ("v += 1", "w += 1", "w = v[2:]")),
    Row("x itself", "v = x * 2", "out = x + v", ("x = x[:1]", "x = x.double()", "x = torch.ones(4)", "x += 1")),
    Row("x is the global tensor", "v = x * 2", "out = x + v", ("x = v", "v += 1", "v = torch.ones(4)"),
        stale_in_dynamo=True),
    Row("a CPU tensor in place", _ON_CPU, "out = x * v.to(dev)", ("v.add_(1)", "v[0] = 5", "v.zero_()")),
    Row("a CPU tensor replaced", _ON_CPU, "out = x * v.to(dev)", ("v = v * 2", "v = torch.ones(1, device='cpu')")),
    Row("a CPU tensor in a closure", _CLOSURE.replace("torch.ones(4)", "torch.ones(4, device='cpu')")
        .replace("x * v", "x * v.to(x.device)"), "out = f(x)", ("v.add_(1)", "change(v * 3)"), doors=CAPTURES),
    Row("a CPU tensor in an object", "class C:\n    pass\nc = C()\nc.v = torch.ones(4, device='cpu')",
        "out = x * c.v.to(dev)", ("c.v.add_(1)", "c.v = c.v * 3")),
    Row("a CPU number as a 0-dim tensor", "v = torch.tensor(2.0, device='cpu')", "out = x * v",
        ("v.fill_(3)", "v = torch.tensor(4.0, device='cpu')")),
    Row("a CPU tensor's item", "v = torch.tensor([2.0, 3.0], device='cpu')", "out = x * v[1].item()", "v[1] = 5.0",
        allowed="refused"),
    Row("a branch on a CPU tensor", "v = torch.tensor(True, device='cpu')", "out = x if v else -x", "v.fill_(False)",
        allowed="refused"),
    Row("a CPU tensor changed through a view", _ON_CPU + "w = v[:2]", "out = x * v.to(dev)", "w.add_(1)"),
    Row("a CPU tensor changed through NumPy", _ON_CPU + "n = v.numpy()", "out = x * v.to(dev)", "n[0] = 5",
        allowed="refused"),
    Row("a CPU tensor that replaces a jax tensor", "v = x * 2", "out = x + v.to(dev)",
        ("v = torch.ones(4, device='cpu')", "v = x * 3")),
    Row("a CPU tensor's data", _ON_CPU, "out = x * v.to(dev)", "v.data = torch.zeros(4, device='cpu')"),
    Row("requires_grad_ of an argument", "x.requires_grad_()", "out = x * x", ("x.requires_grad_(False)",
        "x.requires_grad_(True)"), grads="x,", doors=PURE),
    Row("requires_grad_ of a global", "w = torch.ones(4, requires_grad=True)\nv = torch.ones(4, requires_grad=True)",
        "out = w * x + v * v", ("v.requires_grad_(False)\nv.grad = None", "v.requires_grad_(True)",
        "w.requires_grad_(False)"), grads="w, v"),
    Row("a leaf's data", "w = torch.ones(4, requires_grad=True)", "out = w * x", ("w.data = x * 3", "w.data.add_(1)"),
        grads="w,"),
    Row("a leaf written under no_grad", "w = torch.ones(4, requires_grad=True)", "out = w * w * x",
        "with torch.no_grad():\n    w.mul_(3)", grads="w,"),
    Row("a tensor that an earlier graph made", "w = torch.ones(4, requires_grad=True)\nh = w * 2", "out = h * x",
        ("h = w * w * 3", "h = h.detach()", "h = w * 5"), grads="w,", doors=("eager", "%%pure", "pure")),
    Row("a tensor's attribute", "v = x * 2\nv.scale = 2", "out = x * v.scale + v", "v.scale = 3"),
    Row("a hook on a leaf", "w = torch.ones(4, requires_grad=True)", "out = w * x",
        ("h = w.register_hook(lambda g: g * 2)", "h.remove()"), grads="w,"),
    Row("a hook's own number", "w = torch.ones(4, requires_grad=True)\nby = 2\nh = w.register_hook(lambda g: g * by)",
        "out = w * x", "by = 3", grads="w,"),
    Row("a hook on a tensor in the code", "w = torch.ones(4, requires_grad=True)\nby = 2\ndef double(g):\n"
        "    return g * by",
        "h = w * x\nh.register_hook(double)\nout = h * 3", ("by = 3", "def double(g):\n    return g * 5"), grads="w,"),
    Row("a post-accumulate hook", "w = torch.ones(4, requires_grad=True)\nseen = []", "out = w * x",
        "h = w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))", grads="w,",
        watch=("seen",), doors=("eager", "%%pure", "pure")),
    Row("whether a leaf has a gradient", "w = torch.ones(4, requires_grad=True)",
        "out = x * (2 if w.grad is None else 3)", ("w.grad = torch.ones(4)", "w.grad = None")),
    Row("a leaf's gradient that code reads", "w = torch.ones(4, requires_grad=True)\nw.grad = torch.ones(4)",
        "out = x * w.grad", ("w.grad = torch.full((4,), 3.0)", "w.grad.mul_(2)", "w.grad = x[:2].repeat(2)")),
    Row("a gradient that is alive when it is replaced", "w = torch.ones(4, requires_grad=True)\nw.grad = torch.ones(4)",
        "out = x * w.grad", ("old = w.grad\nw.grad = torch.full((4,), 3.0)", "w.grad.mul_(2)", "w.grad = old")),
    Row("the gradient of an argument", "w = torch.ones(4, requires_grad=True)\nw.grad = torch.ones(4)",
        "out = x * w.grad", ("old = w.grad\nw.grad = torch.full((4,), 3.0)", "w.grad.mul_(2)", "w.grad = old"),
        args="x, w"),
    Row("the gradients of a module", "net = filled(nn.Linear(4, 4))",
        "out = x * (1 + sum(p.grad.sum() for p in net.parameters() if p.grad is not None))",
        ("net.weight.grad = torch.ones(4, 4)", "net.bias.grad = x * 1", "net.weight.grad = None")),
    Row("a leaf's gradient changed outside", "w = torch.ones(4, requires_grad=True)",
        "(w * x).sum().backward()\nout = w.grad * 1", ("w.grad = None", "w.grad.zero_()", "w.grad = x * 5",
        "w.grad += 1"),
        doors=WRITES[:3], watch=("w.grad",)),
    Row("nested tensors of lists that code stacks", "vs = [x, x * 2]", "out = torch.stack(vs)", "vs.append(x * 3)"),
    Row("a Parameter in a list", "ps = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4) * 2)]",
        "out = sum(p * x for p in ps)", ("ps[1] = nn.Parameter(torch.ones(4) * 3)", "ps.pop()"), grads="ps[0],"),
    Row("a random key's state", "torch.manual_seed(0)", "out = (torch.rand(4) < 2) * x", "torch.manual_seed(1)"),
]  # fmt: skip
