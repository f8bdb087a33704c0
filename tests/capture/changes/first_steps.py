"""What a training step may ask of old gradients and of the state of its optimizer, which its first call finds empty."""

from __future__ import annotations

from .harness import JIT, Row
from .training import ADAM, MOMENTUM, SGD

_LOSS = "loss = (model(x) ** 2).sum()\n"
_PASS = _LOSS + "loss.backward()\n"
_CLEARED = ("opt.state.clear()",)
_MINE = """
class Mine(torch.optim.Adam):
    def zero_grad(self, set_to_none=True):
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    p.grad.mul_(0.5)
opt = Mine(model.parameters(), lr=0.05)
"""
_TWO = """
a = torch.optim.Adam([model.weight], lr=0.05)
b = torch.optim.SGD([model.bias], lr=0.05, momentum=0.5)
"""
_STEP = "opt.step()\nout = loss.detach()\n"
_WATCH = (
    "list(model.parameters())",
    "[p.grad for p in model.parameters()]",
    "[[v for k, v in sorted(opt.state[p].items()) if isinstance(v, torch.Tensor)] for p in model.parameters()]",
)
_CHANGES = (
    "for p in model.parameters():\n    p.grad = None",
    "for p in model.parameters():\n    p.grad = torch.ones_like(p)",
    "model.weight.grad = None",
    "opt.zero_grad(set_to_none=False)",
)
_PUT_BACK = "for p, g in zip(model.parameters(), held):\n    p.grad = g\n"
_HELD = "\nheld = [torch.ones_like(p) for p in model.parameters()]\n" + _PUT_BACK


def _row(
    name: str,
    code: str,
    given: str = ADAM,
    change: str | tuple[str, ...] = _CHANGES,
    watch: tuple[str, ...] = (),
) -> Row:
    return Row(name, given, code, change, doors=JIT, watch=_WATCH + watch)


def _asks(question: str) -> str:
    """A step that does something else if the answer is yes."""
    return (
        f"k = 3.0 if {question} else 1.0\nopt.zero_grad()\nloss = (model(x) ** 2).sum() * k\nloss.backward()\n"
        + _STEP
    )


ROWS = [
    # -- old gradients that do not matter --
    _row("zero_grad of the optimizer", "opt.zero_grad()\n" + _PASS + _STEP),
    _row("zero_grad of the model", "model.zero_grad()\n" + _PASS + _STEP),
    _row("zero_grad after the forward pass", _LOSS + "opt.zero_grad()\nloss.backward()\n" + _STEP),
    _row("zero_grad at the end", _PASS + _STEP + "opt.zero_grad()"),
    _row("None by hand", "for p in model.parameters():\n    p.grad = None\n" + _PASS + _STEP),
    _row("del by hand", "for p in model.parameters():\n    del p.grad\n" + _PASS + _STEP),
    _row("a gradient by hand", "for p in model.parameters():\n    p.grad = torch.ones_like(p)\n" + _PASS + _STEP),
    _row("a parameter that is not used",
        "opt.zero_grad()\nloss = (x @ model.weight).square().sum()\nloss.backward()\n" + _STEP),
    _row("two passes", "opt.zero_grad()\n" + _PASS + _PASS + _STEP),
    _row("two steps", ("opt.zero_grad()\n" + _PASS + "opt.step()\n") * 2 + "out = loss.detach()"),
    _row("zero_grad of plain descent", "opt.zero_grad()\n" + _PASS + _STEP, SGD),
    _row("zero_grad with momentum", "opt.zero_grad()\n" + _PASS + _STEP, MOMENTUM),
    # -- old gradients that matter --
    _row("no zero_grad", _PASS + _STEP),
    _row("zero_grad to zeros", "opt.zero_grad(set_to_none=False)\n" + _PASS + _STEP),
    _row("zero_grad of the model to zeros", "model.zero_grad(False)\n" + _PASS + _STEP),
    _row("zero_grad of half of the model", "model.weight.grad = None\n" + _PASS + _STEP),
    _row("is there one?", _asks("model.weight.grad is None")),
    _row("is there one, by getattr?", _asks("getattr(model.weight, 'grad') is None")),
    _row("is there one in a list?", _asks("any(p.grad is not None for p in model.parameters())")),
    _row("is there one, after the forward pass?",
        _LOSS + "k = 2.0 if model.bias.grad is None else 1.0\nopt.zero_grad()\n(loss * k).backward()\n" + _STEP),
    _row("old ones in the loss",
        "old = [p.grad for p in model.parameters()]\nopt.zero_grad()\n" + _PASS
        + "for p, g in zip(model.parameters(), old):\n    if g is not None:\n        p.grad += 0.5 * g\n" + _STEP),
    _row("old ones are clipped first",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n" + _PASS + _STEP, change=_CHANGES[1:]),
    _row("old ones that something else holds", _PASS + "opt.zero_grad()\n" + _PASS + _STEP, ADAM + _HELD,
        change=(_PUT_BACK,), watch=("held",)),
    _row("old ones that are put back",
        _PUT_BACK + _PASS + _STEP, ADAM + _HELD, watch=("held",)),
    _row("a hook that reads old ones", _LOSS + "loss.backward()\nopt.zero_grad()\n" + _PASS + _STEP,
        ADAM + "\ndef halve(p):\n    p.grad.mul_(0.5)\nfor p in model.parameters():\n"
        "    p.register_post_accumulate_grad_hook(halve)"),
    _row("a zero_grad of the user's",
        "opt.zero_grad()\n" + _PASS + _STEP,
        ADAM + _MINE),
    # -- the state of the optimizer --
    _row("is there state?", _asks("not opt.state"), change=_CLEARED),
    _row("how much state is there?", _asks("len(opt.state) == 0"), change=_CLEARED),
    _row("is there state of a parameter?", _asks("model.weight not in opt.state"), change=_CLEARED),
    _row("is there state in its dictionary?", _asks("not opt.state_dict()['state']"), change=_CLEARED),
    _row("is there state in a copy?", "import copy\n" + _asks("not copy.deepcopy(opt).state"), change=_CLEARED),
    _row("is there state, by getattr?", _asks("not getattr(opt, 'state')"), change=_CLEARED),
    _row("is there state, by vars?", _asks("not vars(opt)['state']"), change=_CLEARED),
    _row("is there state, asked by a function?", _asks("empty(opt)"),
        ADAM + "\ndef empty(o):\n    return len(o.state) == 0", change=_CLEARED),
    _row("is there a step count?", _asks("sum(float('step' in s) for s in opt.state.values()) == 0"),
        change=_CLEARED),
    _row("is there momentum?", _asks("'momentum_buffer' not in opt.state[model.weight]"), MOMENTUM,
        change=_CLEARED),
    _row("a hook before the step asks for state", "opt.zero_grad()\n" + _PASS + _STEP,
        ADAM + "\ndef ask(opt, args, kwargs):\n    if not opt.state:\n        with torch.no_grad():\n"
        "            model.weight.mul_(2)\nopt.register_step_pre_hook(ask)", change=_CLEARED),
    _row("a step with a closure",
        "def closure():\n    opt.zero_grad()\n    loss = (model(x) ** 2).sum()\n    loss.backward()\n    return loss\n"
        "out = opt.step(closure).detach()"),
    _row("an optimizer in a list", "os[0].zero_grad()\n" + _PASS + "os[0].step()\nout = loss.detach()",
        ADAM + "\nos = [opt]"),
    _row("an optimizer that a function names", "go()\n" + _PASS + "go(True)\nout = loss.detach()",
        ADAM + "\ndef go(step=False):\n    opt.step() if step else opt.zero_grad()"),
    _row("two optimizers", "a.zero_grad()\nb.zero_grad()\n" + _PASS + "a.step()\nb.step()\nout = loss.detach()",
        ADAM + _TWO),
    _row("a group that comes later", "opt.zero_grad()\n" + _PASS + _STEP,
        ADAM.replace("model.parameters()", "[model.weight]"),
        change=("opt.add_param_group({'params': [model.bias]})",)),
]  # fmt: skip
