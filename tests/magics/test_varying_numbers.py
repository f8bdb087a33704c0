"""Numbers in cells that change at each run: names of the notebook, attributes, items."""

from __future__ import annotations

from typing import Any

import pytest

from .cells import run

SETUP = """
import math
import torch
class State: pass
state = State()
state.n = 0
table = {"k": 0}
step, rate = 0, 1.0
x = torch.ones(3, device="jax")
"""
CELLS = {
    "a name": "step = step + 1\ny = x * step\n(y, step)",
    "a name that is incremented": "step += 1\ny = x * (1 - 0.9**step)\n(y, step)",
    "a name that is only read": "y = x * rate\n(y, rate)",
    "an attribute": "state.n += 1\ny = x / state.n\n(y, state.n)",
    "an item": "table['k'] += 2\ny = x * math.sqrt(table['k'])\n(y, table['k'])",
    "several": "step += 1\nstate.n = step * 2\ntable['k'] = state.n + step\ny = x * table['k']\n(y, table['k'])",
}


@pytest.mark.parametrize("magic", ["%%pure", "%%jit"])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell(shell: Any, capsys: Any, magic: str, name: str) -> None:
    def results(head: str) -> list[Any]:
        run(shell, SETUP)
        found = []
        for i in range(6):
            y, number = run(shell, head + CELLS[name])
            found.append((y.tolist(), number, type(number)))
            run(shell, f"rate = 0.5 * {i}")
        return found

    expected = results("")
    capsys.readouterr()
    ours = results(f"{magic}\n")
    for (y, number, kind), (y_of_torch, number_of_torch, kind_of_torch) in zip(
        ours, expected, strict=True
    ):
        assert y == pytest.approx(y_of_torch, rel=1e-6)
        assert (number, kind) == (number_of_torch, kind_of_torch)
    traces = [line for line in capsys.readouterr().out.splitlines() if "traced" in line]
    assert 1 <= len(traces) <= 3


def test_a_cell_that_fails_leaves_the_numbers_as_they_were(shell: Any) -> None:
    run(shell, SETUP)
    cell = (
        "%%jit\nstep += 1\nstate.n += step\ny = x * state.n\nif fails: raise ValueError('the user')"
    )
    run(shell, "fails = False")
    for _ in range(3):
        run(shell, cell)
    names = shell.user_ns
    run(shell, "fails = True")
    for _ in range(2):
        with pytest.raises(ValueError, match="the user"):
            run(shell, cell)
        assert (names["step"], names["state"].n) == (3, 6)
    run(shell, "fails = False")
    run(shell, cell)
    assert (names["step"], names["state"].n) == (4, 10)
    assert type(names["step"]) is int
