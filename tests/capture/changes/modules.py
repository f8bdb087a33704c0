"""A module changes: its attributes, mode, hooks, parameters, buffers, children, and the tables that hold them."""

from __future__ import annotations

from .harness import CAPTURES, CELLS, JIT, METHOD, Row

_NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = filled(nn.Linear(4, 4))
        self.by = 2
        self.register_buffer("r", torch.ones(4))
    def forward(self, x):
        return self.fc(x) * self.by + self.r
net = Net()
w = net.fc.weight
"""
_SEQ = "seq = nn.Sequential(filled(nn.Linear(4, 4)), nn.Tanh(), filled(nn.Linear(4, 4), 2))\n"
_HOOKS = (
    _SEQ
    + "by = 2\ndef hook(m, i, o):\n    return o * by\ndef early(m, i):\n    return (i[0] * by,)\n"
)
_METHOD = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.by = 2
    @pure
    def forward(self, x):
        return self.w * x * (self.by if self.training else 5)
net = Net()
"""
# A method that is decorated itself: called plainly, for there is no door around it.
_DECORATED = [
    ("training", ("net.eval()", "net.train()")),
    ("an attribute", ("net.by = 3",)),
    ("a parameter replaced", ("net.w = nn.Parameter(torch.ones(4) * 3)",)),
    ("a parameter's shape", ("net.w = nn.Parameter(torch.ones(1) * 3)",)),
    ("a parameter frozen", ("net.w.requires_grad_(False)", "net.w.requires_grad_(True)")),
    ("another object", ("net = Net()\nnet.by = 7", "old, net = net, Net()")),
    ("a class attribute", ("del net.by\nNet.by = 4",)),
]
_G = "nn.modules.module.register_module_"
# Each reads all of a module's tree, which is called afterwards.
_WHOLE = (
    "list(seq.parameters())",
    "list(seq.modules())",
    "seq.state_dict()",
    "dict(seq.named_buffers())",
)

ROWS = [
    Row(
        "a module copied inside the code, as first-order MAML does",
        """
        import copy
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.k = nn.Linear(4, 4), 2.0
            def forward(self, x):
                return self.layer(x) * self.k
        net = filled(Net())
        def adapted(x):
            fast = copy.deepcopy(net)
            grads = torch.autograd.grad(fast(x).square().sum(), list(fast.parameters()))
            with torch.no_grad():
                for p, grad in zip(fast.parameters(), grads):
                    p.sub_(0.1 * grad)
            return fast(x).detach()
        """,
        "out = adapted(x)",
        (
            "net.k = 0.5",
            "filled(net, 0.3)",
            "net.layer = filled(nn.Linear(4, 4), 0.2)",
            "net.layer.register_forward_hook(lambda module, args, out: out + 1)",
        ),
        watch=("[p.detach() for p in net.parameters()]",),
        doors=CAPTURES,
    ),
    Row("a module's attribute", _NET, "out = net(x)", ("net.by = 3", "net.by = 2.5"), grads="net.fc.weight,"),
    Row("a child's attribute", "seq = nn.Sequential(nn.LeakyReLU(0.5))", "out = seq(x)",
        "seq[0].negative_slope = 0.25"),
    Row("an attribute of a library's module", "act = nn.Softplus(beta=1.0)", "out = act(x)", "act.beta = 2.0"),
    Row("eps of a norm", "norm = nn.LayerNorm(4)", "out = norm(x)", "norm.eps = 1.0"),
    Row("a module's list", _NET + "net.scales = [1, 2]\nNet.forward = lambda self, x: self.fc(x) * self.scales[1]",
        "out = net(x)", "net.scales[1] = 5"),
    Row("a module's method", _NET, "out = net(x)", "Net.forward = lambda self, x: self.fc(x) - self.r",
        stale_in_dynamo=True),
    Row("a module's own forward", _NET, "out = net(x)", "net.forward = lambda x: net.fc(x) - 1"),
    Row("a class attribute of a module", _NET + "Net.shift = 1\nNet.forward = lambda self, x: self.fc(x) + self.shift",
        "out = net(x)", "Net.shift = 5"),
    Row("train and eval", _NET + "net.drop = nn.BatchNorm1d(4)\n"
        "Net.forward = lambda self, x: self.drop(self.fc(x)[None]"
        ".expand(2, 4) * torch.tensor([[1.0], [2.0]]))", "out = net(x)", ("net.eval()", "net.train()"),
        watch=("net.drop.running_mean", "net.drop.num_batches_tracked")),
    Row("dropout's mode", "drop = nn.Dropout(1.0)", "out = drop(x)", ("drop.eval()", "drop.train()", "drop.p = 0.0")),
    Row("self.training", _NET + "Net.forward = lambda self, x: x * (2 if self.training else 3)", "out = net(x)",
        ("net.eval()", "net.train()", "net.training = False")),
    Row("a batch norm's momentum", "norm = nn.BatchNorm1d(4)\ny = torch.stack([x, x * 2])", "out = norm(y)",
        ("norm.momentum = 0.5", "norm.reset_running_stats()"), args="y",
        watch=("norm.running_mean",)),
    Row("a batch norm's cumulative average", "norm = nn.BatchNorm1d(4)\ny = torch.stack([x, x * 2])", "out = norm(y)",
        "norm.momentum = None", args="y", watch=("norm.running_mean",), allowed="refused"),
    Row("running statistics turned off", "norm = nn.BatchNorm1d(4)\ny = torch.stack([x, x * 2])", "out = norm(y)",
        "norm.track_running_stats = False\nnorm.running_mean = None\nnorm.running_var = None", args="y"),
    Row("a parameter replaced", _NET, "out = net(x)", ("net.fc.weight = nn.Parameter(torch.ones(4, 4))",
        "net.fc.weight = nn.Parameter(torch.ones(3, 4))\nnet.fc.bias = None\nnet.r = torch.ones(3)"),
        grads="net.fc.weight,"),
    Row("a parameter's data", _NET, "out = net(x)", ("net.fc.weight.data = torch.ones(4, 4)",
        "net.fc.weight.data.mul_(2)"), grads="net.fc.weight,"),
    Row("no bias from now on", _NET, "out = net(x)", "net.fc.bias = None", grads="net.fc.weight,"),
    Row("_parameters edited", _NET, "out = net(x)", ("net.fc._parameters['bias'] = nn.Parameter(torch.ones(4))",
        "net.fc._parameters['bias'] = None"), grads="net.fc.weight,"),
    Row("_buffers edited", _NET, "out = net(x)", "net._buffers['r'] = torch.zeros(4)"),
    Row("_modules edited", _NET, "out = net(x)", ("net._modules['fc'] = nn.Identity()",
        "net._modules['fc'] = filled(nn.Linear(4, 4), 3)")),
    Row("a buffer replaced", _NET, "out = net(x)", ("net.r = torch.zeros(4)", "net.r = torch.zeros(1)", "net.r += 1")),
    Row("a buffer rebound by the code", _NET + "def forward(self, x):\n    self.r = 0.5 * self.r + x\n"
        "    return self.r * 2\nNet.forward = forward", "out = net(x)", ("net.r = torch.zeros(4)", "net.r.add_(1)"),
        watch=("net.r",), doors=(*JIT, "compile"), allowed="refused"),
    Row("a buffer rebound by the code of pure", _NET + "def forward(self, x):\n    self.r = 0.5 * self.r + x\n"
        "    return self.r * 2\nNet.forward = forward", "out = net(x)", ("net.r = torch.zeros(4)", "net.r.add_(1)"),
        watch=("net.r",), doors=("%%pure", "pure"), allowed="refused"),
    Row("a child replaced", _SEQ, "out = seq(x)", ("seq[0] = filled(nn.Linear(4, 4), 3)", "seq[1] = nn.ReLU()"),
        grads="seq[2].weight,"),
    Row("a child deleted", _SEQ, "out = seq(x)", ("del seq[1]", "del seq[0]")),
    Row("a child appended", _SEQ, "out = seq(x)", ("seq.append(nn.ReLU())", "seq.insert(0, nn.Tanh())")),
    Row("children's order", _SEQ, "out = seq(x)", "seq[0], seq[2] = seq[2], seq[0]"),
    Row("a ModuleList in a loop", "ls = nn.ModuleList([filled(nn.Linear(4, 4)) for _ in range(2)])",
        "out = x\nfor l in ls:\n    out = l(out)", ("ls.append(filled(nn.Linear(4, 4), 3))", "ls[0] = nn.Tanh()")),
    Row("a ModuleDict", "ms = nn.ModuleDict({'a': nn.Tanh()})\nkey = 'a'", "out = ms[key](x)",
        ("ms['a'] = nn.ReLU()", "ms['b'] = nn.Sigmoid()\nkey = 'b'")),
    Row("a ParameterList", "ps = nn.ParameterList([torch.ones(4), torch.ones(4) * 2])", "out = sum(p * x for p in ps)",
        ("ps[1] = nn.Parameter(torch.ones(4) * 3)", "ps.append(torch.ones(4) * 4)")),
    Row("weights tied", _SEQ, "out = seq(x)", "seq[2].weight = seq[0].weight", grads="seq[0].weight, seq[2].weight"),
    Row("another module of the name", _SEQ, "out = seq(x)", "seq = nn.Sequential(filled(nn.Linear(4, 2)))"),
    Row("load_state_dict", _SEQ + "import copy\nold = copy.deepcopy(seq.state_dict())", "out = seq(x)",
        ("seq.load_state_dict({k: v * 2 for k, v in old.items()})", "seq.load_state_dict(old, assign=True)")),
    Row("to another dtype", _SEQ, "out = seq(x)", ("seq.double()\nx = x.double()", "seq.float()\nx = x.float()")),
    Row("requires_grad_ of a layer", _SEQ, "out = seq(x)", ("seq[0].requires_grad_(False)\nseq.zero_grad()",
        "seq[0].requires_grad_(True)", "seq.requires_grad_(False)"), grads="seq[0].weight, seq[2].weight, seq[0].bias"),
    Row("a forward hook", _HOOKS, "out = seq(x)", ("h = seq[0].register_forward_hook(hook)", "by = 3",
        "def hook(m, i, o):\n    return o + 1", "h.remove()"), grads="seq[0].weight,",
        stale_in_dynamo=True),
    Row("a forward hook with keywords", _HOOKS, "out = seq(x)",
        "h = seq[0].register_forward_hook(lambda m, a, k, o: o * by, with_kwargs=True)",
        stale_in_dynamo=True),
    Row("a forward pre-hook", _HOOKS, "out = seq(x)", ("h = seq[0].register_forward_pre_hook(early)", "by = 3",
        "h.remove()"),
        stale_in_dynamo=True),
    *(Row(f"a module called after {whole}", _HOOKS, f"{whole}\nout = seq(x)",
          ("h = seq[0].register_forward_hook(hook)", "by = 3", "seq[1].forward = lambda x: x * 3", "del seq[1].forward",
           "h.remove()", "seq[1] = nn.ReLU()"), grads="seq[0].weight,", stale_in_dynamo=True) for whole in _WHOLE),
    Row("the order of hooks", _HOOKS + "seq[0].register_forward_hook(hook)", "out = seq(x)",
        "h = seq[0].register_forward_hook(lambda m, i, o: o + 1, prepend=True)"),
    Row("a hook of every module", _HOOKS, "out = seq(x)", (f"h = {_G}forward_hook(hook)", "by = 3", "h.remove()"),
        stale_in_dynamo=True),
    Row("a pre-hook of every module", _HOOKS, "out = seq(x)", (f"h = {_G}forward_pre_hook(early)", "h.remove()"),
        stale_in_dynamo=True),
    Row("a backward hook", _HOOKS, "out = seq(x)",
        ("h = seq[1].register_full_backward_hook(lambda m, gi, go: (gi[0] * by,))", "by = 3", "h.remove()"),
        grads="seq[0].weight, seq[2].weight", doors=("eager", *CELLS, "pure", "jit")),
    Row("a backward pre-hook", _HOOKS, "out = seq(x)",
        ("h = seq[2].register_full_backward_pre_hook(lambda m, go: (go[0] * by,))", "h.remove()"),
        grads="seq[0].weight,", doors=("eager", *CELLS, "pure", "jit")),
    Row("a hook on a parameter", _SEQ, "out = seq(x)", ("h = seq[0].weight.register_hook(lambda g: g * 2)",
        "h.remove()"),
        grads="seq[0].weight,"),
    Row("a hook that counts", _HOOKS + "calls = []", "out = seq(x)",
        "h = seq[0].register_forward_hook(lambda m, i, o: calls.append(1))", watch=("len(calls)",), allowed="refused",
        stale_in_dynamo=True),
    Row("a parametrization", _SEQ + "class Twice(nn.Module):\n    def forward(self, w):\n        return w * 2",
        "out = seq(x)",
        "nn.utils.parametrize.register_parametrization(seq[0], 'weight', Twice())"),
    Row("weight_norm", _SEQ, "out = seq(x)", "nn.utils.parametrizations.weight_norm(seq[0])"),
    Row("a pruned weight", _SEQ, "out = seq(x)",
        "import torch.nn.utils.prune as prune\nprune.custom_from_mask(seq[0], 'weight', torch.eye(4))"),
    Row("a lambda in a module", "class L(nn.Module):\n    def __init__(self, f):\n        super().__init__()\n"
        "        self.f = f\n    def forward(self, x):\n        return self.f(x)\nm = L(lambda x: x * 2)", "out = m(x)",
        "m.f = lambda x: x * 3"),
    Row("a tensor attribute that is no buffer", _NET + "net.mask = torch.ones(4)\nNet.forward = lambda self, x: "
        "self.fc(x) * self.mask", "out = net(x)", ("net.mask = torch.zeros(4)", "net.mask.add_(2)")),
    Row("__getattr__ of a module", _NET + "def get(self, name):\n    if name == 'extra':\n        return self.by\n"
        "    return nn.Module.__getattr__(self, name)\nNet.__getattr__ = get\n"
        "Net.forward = lambda self, x: x * self.extra",
        "out = net(x)", "net.by = 3"),
    Row("extra state in a module's dataclass", "from dataclasses import dataclass\n@dataclass\nclass Cfg:\n"
        "    by: int = 2\n"
        + _NET + "net.cfg = Cfg()\nNet.forward = lambda self, x: self.fc(x) * self.cfg.by", "out = net(x)",
        "net.cfg.by = 3"),
    Row("a functional call's parameters", _SEQ + "ps = {k: v.detach() * 2 for k, v in seq.named_parameters()}",
        "out = torch.func.functional_call(seq, ps, (x,))", ("ps = {k: v * 2 for k, v in ps.items()}",
        "ps['0.weight'] = torch.ones(4, 4)")),
    Row("a module's parameters() in the code", _SEQ, "out = sum(p.sum() for p in seq.parameters()) * x",
        ("seq[0].bias = None", "seq.extra = nn.Parameter(torch.ones(2))")),
    *(
        Row(f"a method under pure: {what}", _METHOD, "out = net(x)", change, grads="net.w,", doors=METHOD)
        for what, change in _DECORATED
    ),
]  # fmt: skip
