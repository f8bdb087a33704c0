"""Ctrl-C at any moment of a cell: all of its effects have happened, or none. `make test` runs this file by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .cells import pressing, run
from .test_cell_errors import shell as shell
from .test_cell_errors import state

TALLY = """
class Tally(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
    def forward(self, x):
        self.total += x.detach().sum(0)
        return x - self.total
norm = nn.Sequential(nn.BatchNorm1d(4), Tally())
"""


@pytest.mark.parametrize("magic", ["pure", "jit"])
def test_ctrl_c_at_any_moment(shell: Any, magic: str) -> None:
    run(shell, TALLY)
    body = "count_me = images.sum()\nout = norm(images)\ndrop = F.dropout(out, 0.5)"
    run(shell, f"%%{magic} -q\n{body}")  # modules that are imported at their first use are
    interrupted = 0
    for i in range(25):
        fresh = f"%%{magic} -q\n{body} + {i}"  # another program each time: trace, XLA and run
        before, names = state(shell), dict(shell.user_ns)
        try:
            with pressing(0.002 * (i + 1)):
                result = shell.run_cell(fresh, store_history=False)
        except KeyboardInterrupt:  # before the cell or after it
            continue
        if result.success:
            continue
        error = result.error_in_exec
        # NumPy 2.4 makes a SystemError of a Ctrl-C in the `__hash__` of a class that it looks up (JAX's scalar types).
        assert isinstance(
            error.__cause__ if isinstance(error, SystemError) else error, KeyboardInterrupt
        )
        interrupted += 1
        # The program has run and its names are assigned, or neither. A donated array that was lost raises an error.
        assert shell.user_ns.keys() == names.keys()
        changed = {n for n in names if shell.user_ns[n] is not names[n]}
        assert changed in (set(), {"count_me", "out", "drop"})
        assert (state(shell) == before) is not bool(changed)
    assert interrupted >= 3
    run(shell, f"%%{magic}\n{body}")


def test_ctrl_c_leaves_a_step_and_its_names_together(shell: Any) -> None:
    run(shell, "total = torch.zeros(())")
    step = "%%jit -q\ntotal += 1\nseen = total * 1"
    run(shell, step)
    run(shell, f"step = {step.partition(chr(10))[2]!r}")
    cell = "while True:\n    get_ipython().run_cell_magic('jit', '-q', step)"
    for i in range(40):
        try:
            with pressing(0.02 + 0.0002 * i):
                result = shell.run_cell(cell, store_history=False)
            assert isinstance(result.error_in_exec, KeyboardInterrupt)
        except KeyboardInterrupt:  # before the cell or after it
            pass
        assert shell.user_ns["seen"].item() == shell.user_ns["total"].item()


@pytest.mark.parametrize(
    ("magic", "update"), [("pure", "total = total + 1"), ("jit", "total += 1")], ids=["pure", "jit"]
)
def test_ctrl_c_after_the_step_keeps_its_names(
    shell: Any, magic: str, update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of a cell's program and the end of the magic: here, while it waits for what is printed."""
    run(shell, "total = torch.zeros(())")
    step = f"%%{magic} -q\n{update}\nseen = total * 1\njaxtorch.debug.print('{{}}', seen)"
    run(shell, "import jaxtorch")
    run(shell, step)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.jax, "synchronize", interrupted)
        result = shell.run_cell(step)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert shell.user_ns["seen"].item() == shell.user_ns["total"].item() == 2
