"""What a notebook shows of an error: the frames of the user and of torch, as on the CPU, and the message."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

import jaxtorch

MOST_LINES = 25
SETUP = """
import torch
from torch import nn
import torch.nn.functional as F
import jaxtorch

def setup(device):
    global D, model, x, i, leaf
    D = device
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 3))).to(D)
    x, i = torch.ones(5, 4, device=D), torch.arange(5, device=D)
    leaf = torch.ones(3, device=D, requires_grad=True)

class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g @ g

class Mine(nn.Module):
    def forward(self, x):
        return x @ x
"""


@dataclass
class Shown:
    """What IPython sends to the notebook for an error (`Shell._showtraceback`)."""

    kind: str = ""
    message: str = ""
    parts: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(self.parts)).splitlines()

    @property
    def frames(self) -> list[str]:
        """File and function of each frame; "cell" for those of the user."""
        frames = []
        for line in self.lines:
            if re.match(r"(Cell In|File <ipython-input)", line):
                frames.append("cell")
            elif match := re.match(r"File (.+?):\d+(?:, in ([\w.<>]+))?", line):
                frames.append(f"{match[1].rpartition('site-packages/')[2]} {match[2]}")
        return frames


Fail = Callable[[str], Shown]


@pytest.fixture
def fail(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fail]:
    """Runs a cell that fails; returns what is shown."""
    shown = Shown()

    def show(kind: type, value: BaseException, parts: list[str]) -> None:
        shown.kind, shown.message, shown.parts = kind.__name__, str(value), parts

    monkeypatch.setattr(shell, "_showtraceback", show)
    monkeypatch.setattr("IPython.core.formatters.get_ipython", lambda: shell)
    shell.run_cell(SETUP).raise_error()
    shell.run_cell("setup('jax')").raise_error()

    def run(cell: str) -> Shown:
        shown.parts = []
        shell.run_cell(cell)
        assert shown.parts, "the cell did not fail"
        return Shown(shown.kind, shown.message, shown.parts)

    yield run
    jaxtorch.config.update(tracebacks="short", execution="immediate")


def assert_short(shown: Shown) -> None:
    """At most 25 lines, no frame of jaxtorch or of JAX, nothing above the error itself, the message last."""
    assert len(shown.lines) <= MOST_LINES, "\n".join(shown.lines)
    frames = [f for f in shown.frames if f != "cell" and not f.startswith("torch/")]
    assert frames == []
    assert shown.lines[1].startswith(shown.kind)
    assert not re.search("During handling|direct cause|skipping hidden", "\n".join(shown.lines))
    assert f"{shown.kind}: {shown.message}".splitlines()[0] in shown.lines
    assert "/jaxtorch" not in "\n".join(shown.lines[:-1])


# Mistakes that the CPU makes too.
MISTAKES = {
    "shapes in a model": "y = 1\nmodel(torch.ones(5, 7, device=D))",
    "shapes in a user's module": "nn.Sequential(Mine())(x)",
    "shapes of an operator": "x + torch.ones(3, 3, device=D)",
    "shapes of a matrix product": "x @ x",
    "shapes in a function": "def f(x):\n    return F.linear(x, x.T)\nf(x)",
    "dtype of an operator": "torch.bitwise_not(x)",
    "dtype of a loss": "F.cross_entropy(model(x), x[:, 0])",
    "dtype of a product": "x @ i.view(1, 5)[:, :4].T",
    "dtype of a result": "torch.add(x, 1, out=i)",
    "a dim": "x.sum(5)",
    "an index": "x[7]",
    "a tensor as index": "x[:, :, i]",
    "an index that is no integer": "x[x]",
    "a view": "x.view(7)",
    "a number": "i.to(torch.uint8).fill_(300)",
    "a value": "x.item()",
    "in place, shape": "x.add_(torch.ones(2, 5, 4, device=D))",
    "in place, dtype": "i.add_(1.5)",
    "in place, a leaf": "leaf.add_(1)",
    "in place, a view of a leaf": "leaf[0].mul_(2)",
    "in place, memory that overlaps": "x[:1].expand(5, 4).add_(1)",
    "backward of no scalar": "model(x).backward()",
    "backward a second time": "y = model(x).sum()\ny.backward()\ny.backward()",
    "backward after a write": "y = leaf.exp()\nz = y.sum()\ny.detach().mul_(2)\nz.backward()",
    "backward without a graph": "x.sum().backward()",
    "in a tensor's hook": "y = leaf * 2\ny.register_hook(lambda g: g @ x)\ny.sum().backward()",
    "in a module's hook": "model[0].register_forward_hook(lambda m, a, out: out @ out)\nmodel(x)",
    "in a backward hook": (
        "model[0].register_full_backward_hook(lambda m, gi, go: go[0] @ go[0])\nmodel(x).sum().backward()"
    ),
    "in a Function's backward": "Triple.apply(model(x)).sum().backward()",
    "in saved-tensor hooks": (
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t @ t):\n"
        "    y = leaf.view(1, 3).exp()\ny.sum().backward()"
    ),
    "under no_grad": "@torch.no_grad()\ndef f(x):\n    return x @ x\nf(x)",
    "in an optimizer": (
        "o = torch.optim.SGD(model.parameters(), lr=0.1)\nmodel[0].weight.grad = torch.ones(2, device=D)\no.step()"
    ),
    "in an except block": "try:\n    {}['a']\nexcept KeyError:\n    x @ x",
}


@pytest.mark.parametrize("execution", ["immediate", "deferred"])
@pytest.mark.parametrize("name", MISTAKES)
def test_the_frames_are_those_of_the_cpu(
    shell: InteractiveShell, fail: Fail, name: str, execution: str
) -> None:
    jaxtorch.config.update(execution=execution)
    shown = fail(MISTAKES[name])
    shell.run_cell("setup('cpu')").raise_error()
    expected = fail(MISTAKES[name])
    assert shown.frames == expected.frames
    assert shown.kind == expected.kind
    if name == "in an except block":
        assert "KeyError: 'a'" in shown.lines
    else:
        assert_short(shown)


# Errors of the device alone: (the cell, the frames of the user and of torch, words of the message)
ONLY_HERE: dict[str, tuple[str, int, int, str]] = {
    "a CPU tensor for a model": ("model(torch.ones(5, 4))", 1, 2, "same device"),
    "a CPU tensor for an operator": ("x + torch.ones(5, 4)", 1, 0, "same device"),
    "a device that is none": ("x.to('jax:3')", 1, 0, "invalid device"),
    "out of memory, empty": ("torch.empty(1 << 50, device=D)", 1, 0, "out of device memory"),
    "out of memory, zeros": ("torch.zeros(1 << 50, device=D)", 1, 0, "out of device memory"),
    "out of memory, an operator": (
        "y = torch.ones(1 << 14, device=D)\nz = y.view(-1, 1, 1) * y.view(1, -1, 1) * y\nz.cpu()",
        1,
        0,
        "out of device memory",
    ),
    "out of memory, shown": (
        "y = torch.ones(1 << 14, device=D)\ny.view(-1, 1, 1) * y.view(1, -1, 1) * y",
        0,
        1,
        "out of device memory",
    ),
    "pure": ("f = jaxtorch.pure(lambda x: x @ x)\nf(x)", 2, 0, "cannot be multiplied"),
    "pure of a module": ("jaxtorch.pure(model)(x.T)", 1, 2, "cannot be multiplied"),
    "pure, backward": (
        "f = jaxtorch.pure(lambda x: Triple.apply(x))\nf(x.requires_grad_()).sum().backward()",
        3,  # the backward pass is captured with the forward pass
        0,
        "cannot be multiplied",
    ),
    "pure, a branch": (
        "@jaxtorch.pure\ndef f(x):\n    if x.sum() > 0:\n        return x\n    return -x\nf(x)",
        1,
        0,
        "has no value yet",
    ),
    "jit": ("@jaxtorch.jit\ndef f(x):\n    return model(x @ x)\nf(x)", 2, 0, "cannot be multiplied"),
    "jit, write": (
        "@jaxtorch.jit\ndef f(x):\n    x.add_(torch.ones(7, device=D))\nf(x)",
        2,
        0,
        "must match",
    ),
    "%%pure": ("%%pure\ny = x * 2\nz = y @ y", 1, 0, "cannot be multiplied"),
    "%%jit": ("%%jit\ny = x * 2\nz = model(y.T)", 1, 2, "cannot be multiplied"),
    "deferred, a CPU tensor": (
        "jaxtorch.config.update(execution='deferred')\ny = model(x)\nmodel(torch.ones(5, 4))",
        1,
        2,
        "same device",
    ),
    "deferred, out of memory": (
        "jaxtorch.config.update(execution='deferred')\ny = torch.ones(1 << 14, device=D)\n"
        "z = (y.view(-1, 1, 1) * y.view(1, -1, 1) * y)\nz = z.cpu()",
        1,
        0,
        "out of device memory",
    ),
    "a JAX function": (
        "def f(a):\n    raise ValueError('mine')\njaxtorch.call_jax(f, x)",
        2,
        0,
        "mine",
    ),
    "torch code in JAX": (
        "import jax\ng = jaxtorch.torch2jax(lambda t: t @ t)\ng(jax.numpy.ones((2, 3)))",
        2,
        0,
        "cannot be multiplied",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONLY_HERE)
def test_no_frame_is_ours(fail: Fail, name: str) -> None:
    cell, users, torchs, words = ONLY_HERE[name]
    shown = fail(cell)
    assert_short(shown)
    assert words in shown.message
    counts = shown.frames.count("cell"), sum(f.startswith("torch/") for f in shown.frames)
    assert counts == (users, torchs)


def test_transforms_work_after_an_error_while_a_tensor_was_printed(fail: Fail) -> None:
    fail(ONLY_HERE["out of memory, shown"][0])
    result = torch.vmap(lambda x: x.view(2, 2).sum())(torch.ones(3, 4, device="jax"))
    assert result.tolist() == [4, 4, 4]


def test_an_error_in_a_model_reads_like_this(fail: Fail) -> None:
    lines = fail("y = 1\nmodel(torch.ones(5, 7, device=D))").lines
    assert [re.sub(r":\d+,|(?<=>) \d+|(?<=-)-+| {9,}", "", line) for line in lines[3:]] == [
        "      1 y = 1",
        "-> model(torch.ones(5, 7, device=D))",
        "",
        "File torch/nn/modules/container.py in Sequential.forward",
        "-> input = module(input)",
        "File torch/nn/modules/linear.py in Linear.forward",
        "-> return F.linear(input, self.weight, self.bias)",
        "",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (5x7 and 4x8)",
    ]


def ours(shown: Shown) -> int:
    return sum(f.startswith("/") and "/jaxtorch/" in f for f in shown.frames)


@pytest.mark.parametrize(
    "cell", ["model(torch.ones(5, 4))", "jaxtorch.pure(model)(x.T)", "%%pure\ny = x @ x"]
)
def test_full_shows_all_also_of_the_last_error(
    shell: InteractiveShell, fail: Fail, cell: str
) -> None:
    assert ours(fail(cell)) == 0
    shell.run_cell("%jax config tracebacks=full").raise_error()
    again, last = fail(cell), fail("%tb")
    assert ours(again) == ours(last) > 2
    assert last.kind == again.kind
    shell.run_cell("%jax config tracebacks=short").raise_error()
    assert ours(fail("%tb")) == ours(fail(cell)) == 0


def test_the_error_itself_keeps_its_frames(shell: InteractiveShell, fail: Fail) -> None:
    result = shell.run_cell("try:\n    {}['a']\nexcept KeyError:\n    x @ x")
    error = result.error_in_exec
    files = [f.f_code.co_filename for f, _ in traceback.walk_tb(error.__traceback__)]
    assert any("/jaxtorch/" in f for f in files)
    assert any(
        "/jaxtorch/" in f.f_code.co_filename for f, _ in traceback.walk_tb(sys.last_traceback)
    )
    assert error.__context__ is not None
    assert not isinstance(error.__context__, KeyError)
    assert error.__suppress_context__


@pytest.mark.parametrize(
    "other", ["torch.ones(5, 4)", "None", "torch.ones(5, 4, device='meta')", "'text'"]
)
def test_an_error_of_the_general_path_does_not_follow_one_of_the_hot_path(other: str) -> None:
    """Also where nothing shortens it: in a log, in another shell, in a test."""
    x = torch.ones(5, 4, device="jax")
    with pytest.raises((RuntimeError, TypeError)) as caught:
        torch.add(x, eval(other))
    assert caught.value.__context__ is None


@pytest.mark.parametrize("mode", ["Context", "Verbose", "Plain", "Minimal"])
@pytest.mark.parametrize("name", ["a CPU tensor for a model", "pure", "%%pure"])
def test_every_mode_of_ipython(shell: InteractiveShell, fail: Fail, mode: str, name: str) -> None:
    shell.run_cell(f"%xmode {mode}").raise_error()
    shown = fail(ONLY_HERE[name][0])
    text = "\n".join(shown.lines[:-1])
    assert "/jaxtorch/" not in text
    assert "During handling" not in text
    assert ONLY_HERE[name][3] in shown.lines[-1]


OTHERS = [
    "1 / 0",
    "import json\njson.loads('{')",
    "{}['a']",
    "try:\n    1 / 0\nexcept Exception:\n    [][0]",
]


@pytest.mark.parametrize("cell", OTHERS)
def test_other_errors_look_as_before(
    bare: InteractiveShell, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(bare, "_showtraceback", lambda kind, value, parts: seen.append(parts))
    bare.run_cell(cell)
    bare.run_line_magic("load_ext", "jaxtorch")
    bare.run_cell(cell)
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_unloading_restores_the_shell(bare: InteractiveShell) -> None:
    before = dict(vars(bare.InteractiveTB))
    for _ in range(2):
        bare.run_line_magic("load_ext", "jaxtorch")
        bare.run_line_magic("reload_ext", "jaxtorch")
        assert "structured_traceback" in vars(bare.InteractiveTB)
        bare.run_line_magic("unload_ext", "jaxtorch")
        assert vars(bare.InteractiveTB).keys() == before.keys()


def test_an_error_with_no_frame_of_the_user_is_shown_whole(
    shell: InteractiveShell, fail: Fail
) -> None:
    """Such as one in a hook of the extension, which IPython calls: nothing else says where it came from."""
    with pytest.raises(ValueError, match="tracebacks") as caught:
        jaxtorch.config.update(tracebacks="none")
    error = caught.value
    assert error.__traceback__ is not None
    inner = error.__traceback__.tb_next  # from jaxtorch's own frame on
    error = error.with_traceback(inner)
    parts = shell.InteractiveTB.structured_traceback(ValueError, error, inner)
    assert "options.py" in "".join(parts)
