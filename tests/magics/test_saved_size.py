"""What any view saves into a notebook is at most 60 kB, however large the session is."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxtorch.widgets import hosts, live
from jaxtorch.widgets.view import View

from .conftest import new_shell

# Many layers with long names, a long cell, many programs, many arrays; and one array of many pieces.
SESSION = (
    """
import torch, jaxtorch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_projection = nn.Linear(4, 4)
    def forward(self, x):
        return x + self.attention_projection(x).square()
model = nn.Sequential(*[Block() for _ in range(60)])
x = torch.randn(4, 4)
@jaxtorch.jit
def train(x):
    model.zero_grad()
    loss = model(x).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    return loss
train(x), train(x[:2])
@jaxtorch.pure
def long(h):
"""
    + "".join(f"    h = torch.tanh(h @ h * {i}.5)\n" for i in range(200))
    + """
    return h
long(x)
made = [torch.ones(9000 + n) for n in range(150)]
for n in range(70):
    exec(f"def function_{n}_with_a_long_name(x):\\n    return x * 2", one := {})
    kept = globals().setdefault("kept", [])
    kept.append(jaxtorch.pure(one[f"function_{n}_with_a_long_name"]))
    kept[-1](x), kept[-1](x[0])
"""
)

LONG = "".join(f"y{i} = torch.tanh(x @ x) * {i}.5\n" for i in range(250))
VIEWS = [
    "%jax",
    "%jax cache",
    "%jax cache --all",
    "%jax hlo",
    "%jax hlo train",
    *(f"%jax hlo long --stage {stage}" for stage in ("jaxpr", "stablehlo", "hlo")),
    "%jax hlo train --grep add",
    "%jax hlo train --diff",
    "%jax hlo train long --stage jaxpr",
    f"%%jax hlo\n{LONG}",
    f"%%jax lines\n{LONG}",
    f"%%jax profile\ntrain(x)\nlong(x)\n{LONG}",
    "%jax memory",
    "%jax memory train",
    "%jax memory --why x",
    f"%%jax memory\nheld = [torch.ones(9000 + n) for n in range(200)]\n{LONG}",
    "%jax devices",
    "%jax devices x",
    "%jax show x",
    "%jax show made",
    "%jax show model",
    "%jax show list(range(4000))",
    "%%jax time\ntrain(x)",
]


@pytest.fixture(scope="module")
def session() -> Iterator[InteractiveShell]:
    with new_shell() as shell:
        shell.run_line_magic("load_ext", "jaxtorch")
        shell.run_cell("%jax on", store_history=True).raise_error()
        shell.run_cell(SESSION, store_history=True).raise_error()
        yield shell


@pytest.mark.parametrize("cell", VIEWS, ids=lambda cell: cell.partition("\n")[0])
def test_a_view_saves_at_most_60_kilobytes(
    session: InteractiveShell, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    monkeypatch.setattr(hosts, "host", lambda: hosts.Host("lab", live=False, in_place=True))
    ran = session.run_cell(cell, store_history=True)
    ran.raise_error()
    assert isinstance(ran.result, View)
    saved = live.bundle(ran.result)
    assert isinstance(saved, dict)
    lines = {kind: text.splitlines(keepends=True) for kind, text in saved.items()}
    assert lines["text/html"]
    assert len(json.dumps(lines, ensure_ascii=False, indent=1).encode()) <= 60_000
