"""`%%jax time` and `%jax time`: the first run apart from later runs, with the device's work included."""

from __future__ import annotations

import itertools
import re
import time
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError

from jaxtorch.insight import timing
from jaxtorch.widgets.timing import TimingView

from .cells import SETUP, run


@pytest.fixture(autouse=True)
def short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "LOOP_SECONDS", 0.001)


_sizes = itertools.count(59)


@pytest.fixture
def counting(shell: Any) -> Any:
    """A shell with a function `work` that counts its calls in `calls`, over a tensor of a new shape."""
    run(shell, f"import torch\ncalls = []\nx = torch.ones(53, {next(_sizes)}, device='jax')")
    run(shell, "def work():\n    calls.append(1)\n    return x.lgamma()")
    return shell


def timed(shell: Any, cell: str) -> TimingView:
    view = run(shell, cell)
    assert isinstance(view, TimingView)
    return view


def test_the_first_run_is_apart_with_what_it_compiled(counting: Any) -> None:
    first = timed(counting, "%jax time work()").timing
    assert [p.name for p in first.compiled] == ["lgamma.default"]
    assert first.later == ()
    assert first.cold > max(first.warm.seconds)
    second = timed(counting, "%%jax time\nwork()").timing
    assert second.compiled == ()


def test_the_views_name_both_and_the_measurements(counting: Any) -> None:
    view = timed(counting, "%jax time --repeat 3 work()")
    for form in (repr(view), view._repr_html_()):
        for part in ("Cold", "1 program compiled", "Warm", "a run", "3 measurements of"):
            assert part in form
    assert "nothing was compiled" in repr(timed(counting, "%jax time work()"))


def test_the_device_is_waited_for(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = []
    monkeypatch.setattr(timing, "synchronize", lambda: (waits.append(1), time.sleep(0.002)))
    run(shell, "calls = []")
    warm = timed(shell, "%jax time --repeat 2 calls.append(1)").timing.warm
    assert len(waits) >= 2 * len(warm.totals)
    assert min(warm.totals) > 0.002  # the end of a measurement waits


def test_warming_up_ends_when_nothing_is_compiled(shell: Any) -> None:
    run(shell, SETUP)
    run(shell, "optimizer = torch.optim.Adam(model.parameters(), fused=False)")
    step = (
        "optimizer.zero_grad()\nF.cross_entropy(model(images), labels).backward()\noptimizer.step()"
    )
    view = timed(shell, f"%%jax time --repeat 2\n{step}")
    assert view.timing.steady
    run(shell, "sizes = iter(range(1237, 10**6))")
    growing = timed(shell, "%jax time --repeat 1 torch.ones(next(sizes)).lgamma()")
    assert not growing.timing.steady
    assert growing.timing.later
    assert "every run still compiled" in repr(growing)


@pytest.mark.parametrize("magic", ["pure", "jit"])
def test_a_cell_under_a_cell_magic_prints_nothing(shell: Any, capsys: Any, magic: str) -> None:
    run(shell, SETUP)
    capsys.readouterr()
    view = timed(shell, f"%%jax time\n%%{magic} --name {magic}_timed\ntwice = images * 2")
    assert not re.search(r"^(pure|jit):", capsys.readouterr().out, re.MULTILINE)
    assert [p.name for p in view.timing.compiled] == [f"{magic}_timed"]
    torch.testing.assert_close(shell.user_ns["twice"].cpu(), (shell.user_ns["images"] * 2).cpu())


def test_an_error_is_that_of_the_code_and_ends_it(counting: Any) -> None:
    result = counting.run_cell("%jax time calls.append(1) or 1 / 0", store_history=False)
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert len(counting.user_ns["calls"]) == 1


@pytest.mark.parametrize(
    ("line", "message"), [("time", "Nothing to run"), ("time --repeat 0 1 + 1", "at least 1")]
)
def test_a_mistake_is_one_line(shell: Any, line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        shell.run_line_magic("jax", line)
    assert "\n" not in str(caught.value)
