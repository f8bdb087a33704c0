"""The share of a training step's device time that a profile attributes to lines of cells.

The models are ResNet-18 and the GPT of the third notebook. Each is defined in cells of a real shell, and its training
step runs in three ways: eagerly, with the loss under `%%pure`, and as a whole under `%%jit`.
"""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jaxtorch.insight.profile import Profile, profile

from . import training

_NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "03_train_a_gpt.ipynb"
_STEP = """optimizer.zero_grad()
loss = F.cross_entropy(model(images), labels)
loss.backward()
optimizer.step()
"""


class Model(NamedTuple):
    """The cells that make a model and its training data, and a training step."""

    name: str
    cells: list[str]
    step: str

    @property
    def ways(self) -> dict[str, list[str]]:
        """The cells of a step for each way: eager, its loss under `%%pure`, the whole step under `%%jit`."""
        before, loss, after = re.split(r"^(loss = .*\n)", self.step, maxsplit=1, flags=re.MULTILINE)
        return {
            "eager": [self.step],
            "%%pure": [before, f"%%pure -q\n{loss}", after],
            "%%jit": [f"%%jit -q\n{self.step}"],
        }


def resnet18(width: int = 64, batch: int = 32, size: int = 64) -> Model:
    """ResNet-18 on random images, with SGD."""
    definitions = "\n\n".join(map(inspect.getsource, (training.Block, training.resnet18)))
    data = f"""
torch.manual_seed(0)
model = resnet18(width={width})
images, labels = torch.randn({batch}, 3, {size}, {size}), torch.randint(10, ({batch},))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
"""
    imports = "import torch\nimport torch.nn.functional as F\nfrom torch import nn"
    start = ["%load_ext jaxtorch\n%jax on", imports]
    return Model(f"ResNet-18, {batch}x3x{size}x{size}", [*start, definitions, data], _STEP)


def gpt() -> Model:
    """The GPT of the notebook, made by the notebook's own cells up to its training step."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads(_NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    end = next(i for i, cell in enumerate(cells) if cell.startswith("%%jit"))
    return Model("GPT of notebook 3", cells[:end], cells[end].partition("\n")[2] + "\n")


@contextmanager
def session(model: Model) -> Iterator[InteractiveShell]:
    """A shell in which the model's cells have run. Unloads the extension afterwards."""
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(config=config)
    try:
        for cell in model.cells:
            _run(shell, cell)
        yield shell
    finally:
        shell.run_line_magic("unload_ext", "jaxtorch")
        torch.set_default_device(None)


def profiled(shell: InteractiveShell, cells: list[str], warmup: int = 3) -> Profile:
    """The profile of these cells, run one after the other."""

    def run() -> None:
        for cell in cells:
            _run(shell, cell)

    return profile(run, warmup=warmup)


def in_cells(found: Profile) -> float:
    """The share of the device's time that belongs to a line of a cell, between 0 and 1."""
    known = [
        row.time.total for row in found.lines if row.location is not None and row.location.cell
    ]
    return sum(known) / found.device


def _run(shell: InteractiveShell, cell: str) -> None:
    with redirect_stdout(io.StringIO()):
        shell.run_cell(cell, store_history=True).raise_error()


def rows() -> Iterator[str]:
    """One line for each model and way."""
    for model in (resnet18(), gpt()):
        for way, cells in model.ways.items():
            with session(model) as shell:
                found = profiled(shell, cells)
            if found.recording.error is not None:
                raise found.recording.error
            yield (
                f"{model.name}, {way:7} {100 * in_cells(found):6.2f} % of {found.device / 1e6:.1f} ms on the device "
                "is known by a line of a cell (goal: at least 90)"
            )
