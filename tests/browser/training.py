"""A notebook in which a model is trained, with a view of each kind."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from playwright.sync_api import Locator, Page

from .lab import Lab, settle, write

MARKUP = "<img src=x onerror=alert(1)>"

SET_UP = """\
%load_ext jaxtorch
%jax on
import jaxtorch, torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(512, 64), torch.randint(10, (512,))
"""

TRAIN = """\
@jaxtorch.jit
def train(x, y):
    optimizer.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    return loss

for size in (512, 256, 512, 512):
    loss = train(x[:size], y[:size])
loss.item()
"""

# The second line takes far more time than the others, the first none.
LINES = """\
%%jax lines
a = torch.ones(1024, 1024)
b = a @ a @ a @ a @ a @ a
c = b + 1
c.sum().item()
"""

PROFILE = """\
%%jax profile --repeat 2
for _ in range(3):
    loss = train(x, y)
loss.item()
"""

OTHERS = f"""\
def odd(x):
    return x * 2 + 1
odd.__name__ = odd.__qualname__ = {MARKUP!r}
odd = jaxtorch.pure(odd)
odd(x)
def even(x):
    return x * 2 - 1
"""

CELLS = {
    "set_up": SET_UP,
    "train": TRAIN,
    "others": OTHERS,
    "cache": "%jax cache",
    "hlo": "%jax hlo train",
    "profile": PROFILE,
    "lines": LINES,
    "memory": "%jax memory",
    "devices": "%jax devices x",
    "later": "even = jaxtorch.pure(even)\neven(x)",
}
LATER = ("later",)  # run by the tests themselves


class Training(Lab):
    """The notebook, opened and run."""

    def __init__(
        self,
        page: Page,
        address: str,
        folder: Path,
        cells: dict[str, str] = CELLS,
        later: Collection[str] = LATER,
    ):
        self.cells = cells
        super().__init__(page, address, write(folder / "training.ipynb", cells.values()))
        for name in cells:
            if name not in later:
                self.run(self.number(name))

    def number(self, name: str) -> int:
        return list(self.cells).index(name)

    def of(self, name: str) -> Locator:
        """The live view below the cell of this name, in sight."""
        view = self.view(self.number(name))
        view.scroll_into_view_if_needed()
        settle(view)
        return view

    def prompt(self, name: str) -> str:
        """The number of the cell of this name: they were run in their order."""
        return f"[{self.number(name) + 1}]"
