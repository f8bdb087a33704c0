"""A session that compiled the module in the background takes it over, and goes on with the same results."""

from __future__ import annotations

import gc
import queue
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import nbformat
import pytest
import torch
from nbclient import NotebookClient

from jaxtorch.dispatch.operation import Operation
from jaxtorch.lowerings.registry import Lowering
from jaxtorch.native import build, loading

from . import COMPILED
from .test_build import run

# A compiler that has what it compiles in a file.
COMPILER = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp "{compiled}" "$2"\n'

PROGRAM = """
import time, warnings
import torch, jaxtorch
from jaxtorch.deferred.switch import switch
from jaxtorch.native import loading
from tests.native import test_calls as table, test_products as products
from tests.storage.test_view_kernels import CALLS as VIEWS

assert loading.calls is None
parameter = torch.nn.Parameter(torch.ones(3, device="jax"))
optimizer = torch.optim.SGD([parameter])
source = torch.arange(24.0, device="jax").reshape(2, 3, 4)
runs = {name: lambda op=op, args=args, rest=rest: op(*args, **(rest[0] if rest else {}))
        for name, (op, args, *rest) in table.CALLS.items()}
runs |= {name: lambda view=view: view(source) for name, view in VIEWS.items() if "view_as" not in name}
runs |= {name: lambda call=call: call("jax") for name, call in (products.ORDINARY | products.OTHERS).items()}


def changed():
    with torch.no_grad():
        x = torch.ones(4, 3, device="jax")
        x.add_(x[0].clone()).mul_(2.5)[1].zero_()
        torch._foreach_add_(table.LONG, 1)
        torch._foreach_sub_(table.LONG, 1)
        return x.tolist()


runs["written"] = changed


def results():
    made = {name: run() for name, run in runs.items()}
    torch.jax.synchronize()
    return {name: table.facts(value) for name, value in made.items()}


def step():
    optimizer.zero_grad()
    (parameter * parameter).sum().backward()
    optimizer.step()


before = results()
warnings.simplefilter("error")
while not loading._awaited.exists():
    time.sleep(0.05)
assert results() == before and loading.calls is None, "it was taken over in the middle of a step"
started = time.monotonic()
step()
assert loading.calls is not None
assert time.monotonic() - started < 5
for _ in range(3):
    after = results()
    assert after == before, [n for n in before if after[n] != before[n]]
with torch.no_grad():
    for name in ("two tensors", "a float", "a list of tensors", "a long list of numbers"):
        assert not table.in_python(runs[name]), name
for name in ("view", "transpose.int"):
    assert not table.in_python(runs[name]), name
jaxtorch.config.update(execution="deferred")
switch.policy.sightings = 1000  # programs of several calls round differently
for _ in range(3):
    after = results()
    assert after == before, [n for n in before if after[n] != before[n]]
jaxtorch.config.update(execution="immediate")
print(parameter[0].item())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables for a session that finds no module, and gets it from its compiler."""
    script = tmp_path / "compiler"
    script.write_text(COMPILER.format(compiled=build.build()))
    script.chmod(0o755)
    folder = tmp_path / "native"
    return {"CXX": str(script), "JAXTORCH_NATIVE_FOLDER": str(folder)}


@COMPILED
def test_a_session_takes_it_over_between_steps(environment: dict[str, str]) -> None:
    printed = run(PROGRAM, PYTHONPATH=str(Path(__file__).parents[2]), **environment)
    assert float(printed) == pytest.approx(1 - 1e-3 * 2, rel=1e-6)


@pytest.fixture
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that this session waits for. It cannot be loaded, so that nothing is exchanged."""
    path = tmp_path / "calls.so"
    path.write_bytes(b"")
    monkeypatch.setattr(loading, "_awaited", path)
    yield path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("waits", [False, True])
def test_it_is_looked_at_while_other_threads_wait(
    awaited: Path, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_waits", lambda frame: waits)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    loading.take_over()
    ended.set()
    thread.join()
    assert (loading._awaited is None) == waits


def compute(items: queue.Queue[None]) -> None:
    while not items.queue:  # not `empty`, which is code of the standard library
        sum(range(1000))


@pytest.mark.parametrize(
    ("target", "waits"), [(queue.Queue.get, True), (compute, False)], ids=["waits", "computes"]
)
def test_which_threads_wait(target: Callable[[queue.Queue[None]], None], waits: bool) -> None:
    items: queue.Queue[None] = queue.Queue()
    thread = threading.Thread(target=target, args=(items,))
    thread.start()
    time.sleep(0.05)
    frame = sys._current_frames()[thread.ident or 0]
    assert loading._waits(frame) == waits
    items.put(None)
    thread.join()


def test_a_kernel_in_python_that_nothing_holds_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "calls", None)
    operation = Operation(None, Lowering(jnp.negative), name="negative")
    assert operation(torch.ones(2, device="jax")).tolist() == [-1.0, -1.0]
    watched = weakref.ref(operation)
    del operation
    gc.collect()
    assert watched() is None


def test_nothing_is_looked_for_in_vain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loading, "_awaited", tmp_path / "not there")
    loading.take_over()
    assert loading._awaited is not None


CELLS = (
    "%load_ext jaxtorch\nfrom jaxtorch.native import loading\nprint(loading.calls)",
    "import time\nwhile loading._awaited and not loading._awaited.exists():\n    time.sleep(0.05)",
    "import torch\nx = torch.ones(3, device='jax')\nprint(loading.calls is None, (x + x).tolist())",
)


@COMPILED
def test_a_notebook_takes_it_over_between_cells(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120).execute()
    printed = [cell.outputs[-1].text for cell in notebook.cells if cell.outputs]
    assert printed == ["None\n", "False [2.0, 2.0, 2.0]\n"]
