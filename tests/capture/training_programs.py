"""Random training programs as the text of a Python script.

A seed gives a `Program`: a model, its optimizers and schedulers, a few functions that hold parts of a training step,
and a list of events: a call of such a function, an eager part of a step, or something that changes what the functions
read.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

# Optimizers, and what may be set in their groups midway.
OPTIMIZERS: dict[str, tuple[list[str], dict[str, list[str]]]] = {
    "SGD": (
        ["", "momentum=0.9", "momentum=0.5, nesterov=True", "weight_decay=0.1", "momentum=0.5, dampening=0.25"],
        {"momentum": ["0.3", "0.9", "0.0"], "weight_decay": ["0.0", "0.2"], "maximize": ["True"]},
    ),
    "Adam": (["", "amsgrad=True", "betas=(0.5, 0.9)", "weight_decay=0.1"], {"betas": ["(0.8, 0.99)"], "eps": ["1e-3"]}),
    "AdamW": (["", "amsgrad=True", "weight_decay=0.1"], {"betas": ["(0.8, 0.99)"], "weight_decay": ["0.0", "0.2"]}),
    "RMSprop": (["", "momentum=0.5", "centered=True"], {"alpha": ["0.5"], "weight_decay": ["0.2"]}),
    "Adagrad": (["", "lr_decay=0.1"], {"lr_decay": ["0.5"], "eps": ["1e-3"]}),
    "Adadelta": ([""], {"rho": ["0.5"]}),
    "Adamax": ([""], {"betas": ["(0.8, 0.99)"]}),
    "NAdam": ([""], {"momentum_decay": ["0.01"]}),
    "RAdam": ([""], {"weight_decay": ["0.2"]}),
    "ASGD": ([""], {"lambd": ["0.01"]}),
    "Rprop": ([""], {"etas": ["(0.4, 1.3)"]}),
}  # fmt: skip
SCHEDULERS = [
    "StepLR({}, 2, 0.5)",
    "ExponentialLR({}, 0.9)",
    "CosineAnnealingLR({}, 10)",
    "LinearLR({})",
]
LAYERS = ["nn.Linear(4, 4)", "nn.LayerNorm(4)", "nn.BatchNorm1d(4)", "nn.Linear(4, 4, bias=False)"]
ACTIVATIONS = ["nn.Tanh()", "nn.Softplus()", "nn.GELU()"]
LOSSES = [
    "F.mse_loss({}, y)",
    "(({} - y) ** 2).sum()",
    "F.smooth_l1_loss({}, y)",
    "F.cross_entropy({}, y.softmax(-1))",
]


@dataclass(frozen=True)
class Program:
    """A training program.

    Args:
        seed: what it was drawn from.
        head: makes the model, the optimizers and the functions.
        events: what happens, one after another.
        inside: whether all of it is the body of a function, so that names are closures and not globals.
    """

    seed: int
    head: str
    events: tuple[str, ...]
    inside: bool

    def text(self) -> str:
        """The script."""
        after = "\nrecord(model, extra, opts, losses)"
        body = self.head + "".join(f"\n# event {i}\n{e}{after}" for i, e in enumerate(self.events))
        if self.inside:
            return f"{_IMPORTS}\ndef main():\n{textwrap.indent(body, '    ')}\n\nmain()\n"
        return f"{_IMPORTS}{body}\n"


_IMPORTS = "import copy\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"


def program(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(seed).program()


class _Writer:
    def __init__(self, seed: int):
        self.seed, self.rng = seed, random.Random(seed)
        self.inside = self.rng.random() < 0.5
        self.layers: list[str] = []
        self.optimizers: list[str] = []  # their kinds
        self.captured: list[bool] = []  # of the functions
        self.flags: list[bool] = []
        self.hooks = 0
        self.frozen = self.grouped = False

    def program(self) -> Program:
        head = "\n".join([*self._model(), *self._optimizers(), *self._functions()])
        events = tuple(self._event() for _ in range(self.rng.randint(6, 14)))
        return Program(self.seed, head, events, self.inside)

    # -- what is there from the beginning --

    def _model(self) -> list[str]:
        rng = self.rng
        self.layers = ["nn.Linear(4, 4)"]
        for _ in range(rng.randint(0, 2)):
            self.layers += [rng.choice(ACTIVATIONS), rng.choice(LAYERS)]
        return [
            f"model = filled(nn.Sequential({', '.join(self.layers)}).double()).to(dev)",
            "extra = nn.Parameter(torch.full((4,), 0.5, dtype=torch.float64, device=dev))",
            "xs, ys = (numbers(3, 5, 4, start=s).to(dev) for s in (0, 1))",
            "scales = [1.0, 0.5]",
            "losses = []",
        ]

    def _optimizers(self) -> list[str]:
        rng = self.rng
        groups = ["model.parameters()"]
        if rng.random() < 0.3:
            groups = ["model[0].parameters()", "[*model[1:].parameters(), extra]"]
        lines = []
        for i, parameters in enumerate(groups):
            kind = rng.choice(list(OPTIMIZERS))
            options = rng.choice(OPTIMIZERS[kind][0])
            lr, foreach = "0.02", rng.random() < 0.6
            if rng.random() < 0.2 and kind in ("SGD", "Adam", "AdamW"):
                lr, foreach = "torch.tensor(0.02)", False  # which torch asks for
            # Said on both sides: what one would choose differs by device, and with it what `.grad` is after a step.
            options = ", ".join([f"lr={lr}", *filter(None, [options]), f"foreach={foreach}"])
            lines.append(f"opt{i} = torch.optim.{kind}({parameters}, {options})")
            self.optimizers.append(kind)
        self.grouped = len(groups) > 1
        names = [f"opt{i}" for i in range(len(groups))]
        lines.append(f"opts = [{', '.join(names)}]")
        scheduler = rng.choice(SCHEDULERS).format(rng.choice(names))
        lines.append(f"sched = torch.optim.lr_scheduler.{scheduler}")
        return lines

    def _functions(self) -> list[str]:
        rng, lines = self.rng, []
        if rng.random() < 0.3:
            lines.append("@pure")
        lines += ["def forward(x):", "    return model(x) * scales[0] + extra"]
        for i in range(rng.randint(1, 3)):
            self.captured.append(rng.random() < 0.8)
            self.flags.append(rng.random() < 0.4)
            lines += ["@jit"] * self.captured[-1]
            lines.append(f"def part{i}(x, y{', update' * self.flags[-1]}):")
            parts = self._parts(whole=i == 0)
            lines += [f"    {line}" for line in parts]
        return lines

    def _parts(self, whole: bool) -> list[str]:
        """The body of a function that holds a part of a step. `whole`: all of it."""
        rng = self.rng
        kinds = ["zero", "back", "clip", "step"]
        if not whole:
            kinds = [
                rng.choice(["zero", "back", "back", "clip", "step"])
                for _ in range(rng.randint(1, 4))
            ]
        elif rng.random() < 0.3:
            kinds = kinds[1:] + kinds[:1]
        lines, returned = [], ["None"]
        flagged = rng.randrange(len(kinds)) if self.flags[-1] else len(kinds)
        for i, kind in enumerate(kinds):
            own = self._part(kind, i > 0 and kinds[i - 1] == "back")
            if i >= flagged and kind != "back":
                own = ["if update:", *(f"    {line}" for line in own)]
            lines += own
            if kind == "back":
                returned = [rng.choice(["loss", "loss.detach()", "loss * 1.0", "(loss, y)[0]"])]
        return [*lines, f"return {returned[0]}"]

    def _part(self, kind: str, filled: bool = False) -> list[str]:
        """One operation of a step. `filled`: gradients are there for sure."""
        rng = self.rng
        opt = f"opt{rng.randrange(len(self.optimizers))}"
        if kind == "zero":
            ways = ["{o}.zero_grad()", "{o}.zero_grad(set_to_none=False)", "model.zero_grad()",
                    "model.zero_grad(set_to_none=False)"]  # fmt: skip
            return [rng.choice(ways).format(o=opt)]
        if kind == "back":
            scale = rng.choice(["", " / 2", " * scales[1]"])
            return [f"loss = {rng.choice(LOSSES).format('forward(x)')}{scale}", "loss.backward()"]
        if kind == "clip":
            ways = ["nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
                    "nn.utils.clip_grad_norm_(model.parameters(), scales[1], foreach=False)",
                    "nn.utils.clip_grad_value_([*model.parameters(), extra], 0.1)"]  # fmt: skip
            return [
                rng.choice(ways if filled else ways[:2])
            ]  # the last needs a gradient that is there
        if len(self.optimizers) == 1 or rng.random() < 0.3:
            return [f"{opt}.step()"]
        return ["for opt in opts:", "    opt.step()"]

    # -- what happens --

    def _event(self) -> str:
        draw = self.rng.random()
        if draw < 0.6:
            return self._call()
        if draw < 0.7:
            return "\n".join(self._eager())
        return self.rng.choice(self._CHANGES)(self)

    def _batch(self) -> str:
        i = self.rng.randrange(3)
        rows = self.rng.choice(["", "", "", "[:3]"])
        return f"xs[{i}]{rows}, ys[{i}]{rows}"

    def _call(self) -> str:
        i = self.rng.choice([0, 0, *range(len(self.captured))])
        update = f", {self.rng.random() < 0.6}" if self.flags[i] else ""
        return f"losses.append(part{i}({self._batch()}{update}))"

    def _eager(self) -> list[str]:
        x, y = self._batch().split(", ")
        lines = [f"x, y = {x}, {y}"]
        for kind in self.rng.choice(
            [("zero", "back", "step"), ("back",), ("step",), ("zero",), ("back", "clip", "step")]
        ):
            lines += self._part(kind, len(lines) > 1)
        return lines

    def _scheduled(self) -> str:
        return "sched.step()"

    def _group(self) -> str:
        i = self.rng.randrange(len(self.optimizers))
        name, values = self.rng.choice(
            [("lr", ["0.01", "0.05"]), *OPTIMIZERS[self.optimizers[i]][1].items()]
        )
        return f"opt{i}.param_groups[0]['{name}'] = {self.rng.choice(values)}"

    def _hooked(self) -> str:
        self.hooks += 1
        return self.rng.choice([
            f"handle{self.hooks} = model[0].register_forward_hook(lambda m, i, o: o * 1.5)",
            f"handle{self.hooks} = model[0].register_forward_pre_hook(lambda m, i: (i[0] * 0.5,))",
            "if model[0].weight.requires_grad:\n    model[0].weight.register_hook(lambda g: g * 0.5)",
            f"handle{self.hooks} = model.register_forward_hook(lambda m, i, o: o + scales[1])",
        ])  # fmt: skip

    def _mode(self) -> str:
        return self.rng.choice(["model.eval()", "model.train()", "model.eval()"])

    def _freeze(self) -> str:
        self.frozen = not self.frozen
        return f"model[0].requires_grad_({not self.frozen})"

    def _add_group(self) -> str:
        if self.grouped:
            return "extra.data.mul_(0.9)"
        self.grouped = True
        return "opt0.add_param_group({'params': [extra], 'lr': 0.01})"

    def _state(self) -> str:
        i = self.rng.randrange(len(self.optimizers))
        return self.rng.choice([
            f"opt{i}.state.clear()",
            f"opt{i}.load_state_dict(copy.deepcopy(opt{i}.state_dict()))",
            f"for state in opt{i}.state.values():\n    for value in state.values():\n"
            "        if torch.is_tensor(value) and value.dim():\n            value.mul_(0.5)",
        ])  # fmt: skip

    def _data(self) -> str:
        return self.rng.choice([
            "with torch.no_grad():\n    model[0].weight.mul_(0.9)",
            "model[0].weight.data = model[0].weight.data * 0.9",
            "for p in model.parameters():\n    p.grad = None",
            "for p in model.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)",
            "model.load_state_dict({k: v * 1 for k, v in model.state_dict().items()})",
            "model[0].bias = nn.Parameter(model[0].bias.detach() * 0.5, model[0].bias.requires_grad)",
        ])  # fmt: skip

    def _number(self) -> str:
        return self.rng.choice(["scales[0] = 0.75", "scales[1] = 0.25", "scales[0] *= 1.25", "scales = [0.9, 0.4]"]
                               [: 3 if self.inside else 4])  # fmt: skip

    def _failure(self) -> str:
        """A function that cannot be captured, called; then what it should have been."""
        body = "\n".join(
            f"    {line}"
            for line in [
                "opt0.zero_grad()",
                *self._part("back"),
                "{}",
                "opt0.step()",
                "return loss",
            ]
        )
        wrong, right = body.format("if loss.item() < 1e9:\n        pass"), body.format("pass")
        call = f"tried({self._batch()})"
        return (
            f"@jit\ndef tried(x, y):\n{wrong}\nfails(lambda: {call})\n"
            f"@jit\ndef tried(x, y):\n{right}\nlosses.append({call})"
        )

    _CHANGES: tuple[Callable[[_Writer], str], ...] = (
        _scheduled, _scheduled, _group, _group, _hooked, _mode, _freeze, _add_group, _state, _data, _number, _failure,
    )  # fmt: skip


# -- running ------------------------------------------------------------------------------------------------------
