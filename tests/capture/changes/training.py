"""An optimizer, its groups, state and hooks change between training steps."""

from __future__ import annotations

from typing import Any

from .harness import JIT, Row

STEP = """
opt.zero_grad()
loss = (model(x) ** 2).sum()
loss.backward()
opt.step()
out = loss.detach()
"""
# An optimizer makes much of a rounding, where gradients are small.
DOUBLE = "torch.set_default_dtype(torch.float64)\nx = x.double()\n"
_WATCH = ("list(model.parameters())", "[p.grad for p in model.parameters()]")
# Kept in lists and not looked at as objects: an optimizer's state is a dictionary by parameter.
_STATE = (
    "[[v for k, v in sorted(opt.state[p].items()) if isinstance(v, torch.Tensor)] for p in model.parameters()]",
)


def _model(optimizer: str) -> str:
    return f"{DOUBLE}model = filled(nn.Linear(4, 4), 0.5)\nopt = torch.optim.{optimizer}"


def _own(update: str) -> str:
    """An optimizer of the user's; `update` is done for each parameter `p` of a group `g`."""
    count = "self.n += 1" if "self.n" in update else "pass"
    return f"""{DOUBLE}
class Own(torch.optim.Optimizer):
    scale = 1.0
    n = 0
    def __init__(self, ps, lr):
        super().__init__(ps, {{"lr": lr}})
    @torch.no_grad()
    def step(self):
        {count}
        for g in self.param_groups:
            for p in g["params"]:
                {update}
model = filled(nn.Linear(4, 4), 0.5)
opt = Own(model.parameters(), 0.05)
"""


SGD = _model("SGD(model.parameters(), lr=0.05)")
MOMENTUM = _model("SGD(model.parameters(), lr=0.05, momentum=0.5)")
ADAM = _model("Adam(model.parameters(), lr=0.05)")


def _row(
    name: str, given: str, change: str | tuple[str, ...], code: str = STEP, **options: Any
) -> Row:
    watch = (*_WATCH, *options.pop("watch", ()))
    return Row(name, given, code, change, doors=JIT, watch=watch, **options)


ROWS = [
    # -- hyperparameters --
    _row("lr", SGD, ("opt.param_groups[0]['lr'] = 0.01", "opt.param_groups[0]['lr'] = 0")),
    _row("lr of Adam", ADAM, ("opt.param_groups[0]['lr'] = 0.01", "opt.param_groups[0]['lr'] = 1"), watch=_STATE),
    _row("lr as a tensor", _model("Adam(model.parameters(), lr=torch.tensor(0.05))"),
        ("opt.param_groups[0]['lr'].fill_(0.01)", "opt.param_groups[0]['lr'] = torch.tensor(0.1)",
         "opt.param_groups[0]['lr'] = 0.2")),
    _row("lr of a scheduler", SGD + "\nsched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)", ("sched.step()",
        "sched.step()")),
    _row("lr and momentum of OneCycleLR", MOMENTUM + "\n"
        "sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=9)",
        ("sched.step()", "sched.step()", "sched.step()")),
    _row("lr that the code reads", SGD, "opt.param_groups[0]['lr'] = 0.01",
        STEP + "out = out * opt.param_groups[0]['lr']"),
    _row("lr that the code branches on", SGD, "opt.param_groups[0]['lr'] = 0.01",
        STEP + "out = out * (2 if opt.param_groups[0]['lr'] > 0.02 else 3)"),
    _row("momentum that the code reads", MOMENTUM, "opt.param_groups[0]['momentum'] = 0.25",
        STEP + "out = out * opt.param_groups[0]['momentum']"),
    _row("a key of a group that the code reads", SGD + "\nopt.param_groups[0]['scale'] = 2",
        "opt.param_groups[0]['scale'] = 3",
        "opt.zero_grad()\nloss = (model(x) ** 2).sum() * opt.param_groups[0]['scale']\nloss.backward()\nopt.step()\n"
        "out = loss.detach()"),
    _row("opt.defaults that the code reads", SGD, "opt.defaults['lr'] = 0.5", STEP + "out = out * opt.defaults['lr']"),
    _row("momentum", MOMENTUM, ("opt.param_groups[0]['momentum'] = 0.9", "opt.param_groups[0]['momentum'] = 0"),
        watch=_STATE),
    _row("momentum that begins", SGD, "opt.param_groups[0]['momentum'] = 0.9", watch=_STATE),
    _row("nesterov", _model("SGD(model.parameters(), lr=0.02, momentum=0.5, foreach=False)"),
        "opt.param_groups[0]['nesterov'] = True"),
    _row("dampening", MOMENTUM, "opt.param_groups[0]['dampening'] = 0.5"),
    _row("weight_decay", SGD, ("opt.param_groups[0]['weight_decay'] = 0.5",
        "opt.param_groups[0]['weight_decay'] = 0.25")),
    _row("weight_decay of AdamW", _model("AdamW(model.parameters(), lr=0.05)"),
        "opt.param_groups[0]['weight_decay'] = 0.5"),
    _row("maximize", SGD, "opt.param_groups[0]['maximize'] = True"),
    _row("betas", ADAM, ("opt.param_groups[0]['betas'] = (0.5, 0.9)", "opt.param_groups[0]['betas'] = (0.0, 0.5)"),
        watch=_STATE),
    _row("eps", ADAM, ("opt.param_groups[0]['eps'] = 1.0", "opt.param_groups[0]['eps'] = 0.1")),
    _row("amsgrad", ADAM, "opt.param_groups[0]['amsgrad'] = True\nfor p in model.parameters():\n"
        "    opt.state[p]['max_exp_avg_sq'] = torch.zeros_like(p)"),
    _row("alpha of RMSprop", _model("RMSprop(model.parameters(), lr=0.05)"), "opt.param_groups[0]['alpha'] = 0.5"),
    _row("etas of Rprop", _model("Rprop(model.parameters(), lr=0.05)"), "opt.param_groups[0]['etas'] = (0.1, 5.0)"),
    _row("lr_decay of Adagrad", _model("Adagrad(model.parameters(), lr=0.05)"),
        "opt.param_groups[0]['lr_decay'] = 0.5"),
    _row("foreach", ADAM, "opt.param_groups[0]['foreach'] = False"),
    # -- groups --
    _row("add_param_group", SGD + "\nextra = nn.Parameter(torch.ones(4))",
        "opt.add_param_group({'params': [extra], 'lr': 0.5})",
        "opt.zero_grad()\nloss = (model(x) * extra).sum()\nloss.backward()\nopt.step()\nout = loss.detach()",
        watch=("extra",)),
    _row("add_param_group of Adam", ADAM + "\nextra = nn.Parameter(torch.ones(4))",
        "opt.add_param_group({'params': [extra], 'lr': 0.5})",
        "opt.zero_grad()\nloss = (model(x) * extra).sum()\nloss.backward()\nopt.step()\nout = loss.detach()",
        watch=("extra",)),
    _row("a parameter taken out of a group", SGD, "opt.param_groups[0]['params'].pop()"),
    _row("a group taken out", _model("SGD([{'params': [model.weight]}, {'params': [model.bias], 'lr': 0.5}], lr=0.05)"),
        ("opt.param_groups[1]['lr'] = 0.01", "opt.param_groups.pop()")),
    _row("the groups replaced", SGD, "opt.param_groups = [dict(opt.param_groups[0], lr=0.5)]"),
    _row("another optimizer", SGD, "opt = torch.optim.Adam(model.parameters(), lr=0.01)"),
    _row("another optimizer of the class", SGD, "opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)"),
    _row("another model", SGD, "model = filled(nn.Linear(4, 4))\nopt = torch.optim.SGD(model.parameters(), lr=0.05)"),
    # -- state --
    _row("state cleared", ADAM, "opt.state.clear()", watch=_STATE),
    _row("state of one parameter cleared", ADAM, "del opt.state[model.bias]", watch=_STATE),
    _row("a momentum buffer zeroed", MOMENTUM, "for s in opt.state.values():\n    s['momentum_buffer'].zero_()",
        watch=_STATE),
    _row("a momentum buffer replaced", MOMENTUM,
        "for s in opt.state.values():\n    s['momentum_buffer'] = torch.ones_like(s['momentum_buffer'])", watch=_STATE),
    _row("a momentum buffer of None", MOMENTUM, "for s in opt.state.values():\n    s['momentum_buffer'] = None",
        watch=_STATE),
    _row("load_state_dict of the optimizer", ADAM + "\nimport copy\nold = copy.deepcopy(opt.state_dict())",
        ("new = copy.deepcopy(opt.state_dict())\nopt.load_state_dict(new)", "opt.load_state_dict(old)"), watch=_STATE),
    _row("load_state_dict with another lr", ADAM, "d = opt.state_dict()\nd['param_groups'][0]['lr'] = 0.5\n"
        "opt.load_state_dict(d)"),
    _row("load_state_dict of the model", ADAM + "\nimport copy\nold = copy.deepcopy(model.state_dict())",
        "model.load_state_dict(old)", watch=_STATE),
    _row("Adam's step set back", ADAM, "for s in opt.state.values():\n    s['step'].zero_()", watch=_STATE),
    _row("Adam's step as a new tensor", ADAM,
        "for s in opt.state.values():\n    s['step'] = torch.tensor(5.0, device=s['step'].device)", watch=_STATE),
    # -- parameters --
    _row("p.data", SGD, "model.weight.data = torch.ones(4, 4)"),
    _row("p.data in place", ADAM, "for p in model.parameters():\n    p.data.mul_(0.5)"),
    _row("a parameter frozen", SGD, ("model.bias.requires_grad_(False)\nmodel.bias.grad = None",
        "model.bias.requires_grad_(True)")),
    _row("a parameter frozen, with momentum", MOMENTUM, ("model.bias.requires_grad_(False)",
        "model.bias.requires_grad_(True)")),
    _row("gradients set to None outside", SGD, "model.zero_grad()", STEP.replace("opt.zero_grad()\n", "")),
    _row("gradients accumulate", SGD, ("opt.zero_grad()", "opt.zero_grad(set_to_none=False)"),
        STEP.replace("opt.zero_grad()\n", "").replace("opt.step()\n", "")),
    _row("a gradient filled by hand", SGD, "for p in model.parameters():\n    p.grad = torch.ones_like(p)",
        "opt.step()\nopt.zero_grad()\nout = (model(x) ** 2).sum().detach()"),
    _row("a gradient is None at first", SGD, "(model(x) ** 2).sum().backward()",
        "opt.step()\nopt.zero_grad(set_to_none=False)\nout = (model(x) ** 2).sum().detach()"),
    _row("an eager step between", ADAM, "opt.zero_grad()\n(model(x) ** 3).sum().backward()\nopt.step()", watch=_STATE),
    _row("an eager step first", ADAM + "\n(model(x) ** 3).sum().backward()\nopt.step()",
        "opt.param_groups[0]['lr'] = 0.01",
        watch=_STATE),
    # -- hooks and patches --
    _row("a step hook", SGD + "\ncalls = []", "h = opt.register_step_post_hook(lambda o, a, k: calls.append(1))",
        watch=("len(calls)",), allowed="refused"),
    _row("a step pre-hook that changes gradients", SGD,
        "h = opt.register_step_pre_hook(lambda o, a, k: [p.grad.mul_(0.5) for p in model.parameters()] and None)"),
    _row("a step hook that clamps", SGD, ("def clamp(o, a, k):\n    with torch.no_grad():\n"
        "        for p in model.parameters():\n"
        "            p.clamp_(-0.1, 0.1)\nh = opt.register_step_post_hook(clamp)", "h.remove()")),
    _row("opt.step patched", SGD, "plain = opt.step\ndef step():\n    for p in model.parameters():\n"
        "        p.grad.mul_(0.5)\n"
        "    plain()\nopt.step = step"),
    _row("a closure", SGD + "\nby = 1\ndef closure():\n    opt.zero_grad()\n    l = (model(x) ** 2).sum() * by\n"
        "    l.backward()\n"
        "    return l", "by = 2", "out = opt.step(closure).detach()", args=""),
    _row("max_norm", SGD + "\nmax_norm = 1.0", ("max_norm = 0.1", "max_norm = 100.0"),
        "opt.zero_grad()\n(model(x) ** 2).sum().backward()\n"
        "out = nn.utils.clip_grad_norm_(model.parameters(), max_norm)\nopt.step()"),
    _row("a flag that leaves the step out", SGD + "\nupdate = True", ("update = False", "update = True"),
        "loss = (model(x) ** 2).sum()\nloss.backward()\nif update:\n    opt.step()\n    opt.zero_grad()\n"
        "out = loss.detach()",
        args="x, update"),
    _row("an optimizer that counts in its groups",
        _own('g["k"] = g.get("k", 0) + 1; p.add_(p.grad, alpha=-g["lr"] / g["k"])'),
        ("pass", "opt.param_groups[0]['k'] = 0", "opt.param_groups[0]['lr'] = 0.01"),
        watch=("[opt.param_groups[0]['k']]",)),
    _row("an optimizer that adds up in its groups",
        _own('g.setdefault("sum", 0.0); g["sum"] += g["lr"]; p.add_(p.grad, alpha=-g["sum"])'),
        ("pass", "del opt.param_groups[0]['sum']", "opt.param_groups[0]['lr'] = 0.01"),
        watch=("[opt.param_groups[0].get('sum')]",)),
    _row("the user's own optimizer", _own('p.add_(p.grad, alpha=-g["lr"] * self.scale)'),
        ("opt.param_groups[0]['lr'] = 0.01", "opt.scale = 2.0", "Own.scale = 5.0\ndel opt.scale")),
    _row("an optimizer that counts in Python", _own('p.add_(p.grad, alpha=-g["lr"] / self.n)'), "opt.n = 0",
        watch=("opt.n",), allowed="refused"),
    _row("an optimizer that counts in its state",
        _own('n = self.state[p]["n"] = self.state[p].get("n", 0) + 1; p.add_(p.grad, alpha=-g["lr"] / n)'),
        "opt.state.clear()", watch=("[opt.state[p]['n'] for p in model.parameters()]",), allowed="refused"),
    _row("a scheduler inside", SGD + "\nsched = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)", "",
        STEP + "sched.step()",
        watch=("opt.param_groups[0]['lr']", "sched.last_epoch"), allowed="refused"),
    _row("lr changed inside", SGD, "", STEP + "opt.param_groups[0]['lr'] *= 0.5", watch=("opt.param_groups[0]['lr']",),
        allowed="refused"),
    _row("an averaged model", SGD + "\nfrom torch.optim.swa_utils import AveragedModel\navg = AveragedModel(model)", "",
        STEP + "avg.update_parameters(model)", watch=("list(avg.parameters())", "int(avg.n_averaged)"),
        allowed="refused"),
    _row("Adam in double precision, where single is the default", "x = x.double()\n"
        "model = filled(nn.Linear(4, 4).double(), 0.5)\nopt = torch.optim.Adam(model.parameters(), lr=0.05)",
        "opt.param_groups[0]['lr'] = 0.01"),
    _row("SGD on a list of tensors", "ws = [torch.ones(4, requires_grad=True)]\nmodel = nn.Identity()\n"
        "opt = torch.optim.SGD(ws, lr=0.1)", ("opt.param_groups[0]['lr'] = 0.5", "ws[0].data.mul_(2)"),
        "opt.zero_grad()\nloss = (ws[0] * x).sum()\nloss.backward()\nopt.step()\nout = loss.detach()", watch=("ws",)),
]  # fmt: skip
