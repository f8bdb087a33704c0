"""Device time is attributed to the right line, module and direction.

No test measures time: the tests compare the operators of a line, how often they ran, and their operations.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.insight.profile.executables import _pair_with_launches
from jaxtorch.insight.profile.launches import Launch
from jaxtorch.programs.stats import ProgramRecord

from .code import ran

N = 96
PRODUCT = 2 * N**3  # operations


@pytest.fixture
def names() -> dict[str, Any]:
    """Matrices, and what the code imports."""
    torch.manual_seed(0)
    square = {n: torch.randn(N, N, device="jax") for n in "abc"}
    return {"torch": torch, "jaxtorch": jaxtorch, "nn": nn, **square}


def test_each_line_has_its_own_operators(tmp_path: Path, names: dict[str, Any]) -> None:
    profiled = ran(
        tmp_path,
        """
        def work():
            x = a @ b
            y = x.exp()

            for _ in range(10):
                z = y @ c
            return z.sum()
        """,
        names,
        repeat=2,
        warmup=1,
    )
    assert profiled.by_line.keys() == {2, 3, 6, 7}
    assert profiled.operators(2) == profiled.operators(6) == {"matmul.default"}
    assert profiled.operators(3) == {"exp.default"}
    assert profiled.operators(7) == {"sum.default"}
    assert profiled.by_line[2].flops == PRODUCT
    assert profiled.by_line[6].flops == 10 * PRODUCT
    assert profiled.by_line[3].flops == N * N
    assert profiled.by_line[6].count == 10 * profiled.by_line[2].count
    assert not profiled.elsewhere
    assert profiled.profile.unattributed.total == 0
    assert not any(time.backward or time.inferred for time in profiled.by_line.values())


def test_a_line_that_was_compiled_by_another_has_its_own_time(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    (a, b), other = (names["a"], names["b"]), []
    other.append(a @ b)  # this line compiles the program
    profiled = ran(
        tmp_path,
        """
        def work():
            return a @ b
        """,
        names,
    )
    assert profiled.by_line[2].flops == PRODUCT
    assert not profiled.elsewhere


@pytest.mark.parametrize("launched", [0, 1])
def test_of_two_executables_of_the_same_code_the_one_that_ran_is_meant(
    tmp_path: Path, names: dict[str, Any], launched: int
) -> None:
    """Another default dtype gives another program but the same XLA code, so runs of both have the same numbers."""
    x = torch.randn(N, 7, device="jax")
    dtypes = [torch.float32, torch.float64]

    def run() -> None:
        x.erfc()

    try:
        for dtype in dtypes:
            torch.set_default_dtype(dtype)
            run()
        torch.set_default_dtype(dtypes[launched])
        names["x"] = x
        profiled = ran(tmp_path, "def work():\n    return x.erfc()", names)
    finally:
        torch.set_default_dtype(torch.float32)
    assert profiled.operators(2) == {"erfc.default"}
    assert profiled.profile.attributed == 1.0


def launch(line: int) -> Launch:
    code = compile("\n" * (line - 1) + "x", "<ipython-input-1-abc>", "exec")
    return Launch(ProgramRecord("mm.default", 0.0, 0.0), ((code, 2),), (), False, ())


@pytest.mark.parametrize("first", [10, (1 << 31) - 2, (1 << 32) - 2])
def test_runs_are_launches_by_their_numbers_and_not_by_when_they_start(first: int) -> None:
    """XLA starts a run when its inputs are ready. Run numbers have 32 bits and are printed as signed."""
    launches = tuple(map(launch, (7, 8, 9)))
    numbers = np.array([first + 2, first, first, first + 1]).astype(np.uint32).astype(np.int32)
    assert _pair_with_launches(numbers.astype(np.int64), [0, 1, 2], launches).tolist() == [
        2,
        0,
        0,
        1,
    ]


def test_where_runs_left_no_event_launches_of_one_line_are_told_alone() -> None:
    runs = np.array([5, 7])
    assert _pair_with_launches(runs, [0, 1], (launch(3), launch(3))).tolist() == [0, 0]
    assert _pair_with_launches(runs, [0, 1], (launch(3), launch(4))).tolist() == [-1, -1]


def test_what_is_dropped_before_it_is_computed_is_waited_for(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    """The profile waits for the work of the warmup, which is not part of it."""
    names["big"] = torch.randn(512, 512, device="jax")
    code = """
        def work():
            for _ in range(20):
                big @ big
            big.exp()
        """
    profiled = ran(tmp_path, code, names, warmup=2)
    assert profiled.by_line[3].flops == 20 * 2 * 512**3
    assert profiled.by_line[4].flops == 512**2
    assert profiled.by_line.keys() == {3, 4}


def test_the_backward_pass_belongs_to_the_lines_of_the_forward_pass(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    names["w"] = names["a"].clone().requires_grad_()
    profiled = ran(
        tmp_path,
        """
        def work():
            x = w @ b
            y = x.exp()
            loss = y.sum()

            loss.backward(loss.detach().sign())
            w.grad = None
        """,
        names,
    )
    assert profiled.by_line[2].flops == 2 * PRODUCT  # the product, and its gradient by w
    assert 0 < profiled.by_line[2].backward < profiled.by_line[2].total
    assert profiled.operators(3) == {"exp.default", "mul.Tensor"}
    assert 0 < profiled.by_line[3].backward < profiled.by_line[3].total
    assert profiled.operators(6) == {"sign.default"}  # the gradient's seed
    assert 5 not in profiled.by_line


def test_the_backward_pass_of_a_forward_pass_before_belongs_to_the_line_that_waits(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    w = names["a"].clone().requires_grad_()
    names["loss"] = (w @ names["b"]).sum()
    profiled = ran(
        tmp_path,
        """
        def work():

            loss.backward()
        """,
        names,
    )
    assert profiled.by_line.keys() == {3}
    assert profiled.by_line[3].flops == pytest.approx(PRODUCT, rel=0.01)


def test_captured_code_has_lines_of_its_own(tmp_path: Path, names: dict[str, Any]) -> None:
    names["w"] = names["a"].clone().requires_grad_()
    profiled = ran(
        tmp_path,
        """
        @jaxtorch.pure
        def loss_of(w):
            x = w @ b
            x = x @ c

            y = torch.sort(x).values
            return y.sum()

        def work():
            w.grad = None
            loss_of(w).backward()
        """,
        names,
        warmup=1,
    )
    for line in (3, 4):  # the product, and its gradient by one factor
        assert profiled.by_line[line].flops == pytest.approx(2 * PRODUCT, rel=0.05)
        assert "dot_general" in profiled.operators(line)
        assert 0 < profiled.by_line[line].backward < profiled.by_line[line].total
    assert "sort" in profiled.operators(6)
    assert "dot_general" not in profiled.operators(6) | profiled.operators(7)
    assert 5 not in profiled.by_line
    directions = {(e.kind, e.backward) for e in profiled.profile.attribution.executables}
    assert {("pure", False), ("pure", True)} <= directions


def test_the_backward_pass_in_a_step_belongs_to_the_lines_of_the_forward_pass(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    names["w"] = names["a"].clone().requires_grad_()
    names["v"] = names["b"].clone().requires_grad_()
    profiled = ran(
        tmp_path,
        """
        @jaxtorch.jit
        def work():
            w.grad = v.grad = None
            x = w @ c

            y = torch.sort(x @ v).values
            loss = y.square().sum()
            loss.backward()
        """,
        names,
        warmup=2,
    )
    assert profiled.by_line[4].flops == pytest.approx(2 * PRODUCT, rel=0.05)
    assert profiled.by_line[6].flops == pytest.approx(3 * PRODUCT, rel=0.2)
    for line in (4, 6):
        assert 0 < profiled.by_line[line].backward < profiled.by_line[line].total
    assert "dot_general" not in profiled.operators(7) | profiled.operators(8)
    assert sum(t.backward for t in profiled.by_line.values()) > 0


def test_a_fusion_is_shared_by_its_lines_and_says_so(tmp_path: Path, names: dict[str, Any]) -> None:
    profiled = ran(
        tmp_path,
        """
        @jaxtorch.pure
        def f(a, b):
            x = a.sin()

            y = x * b + 1

            return y.cos()

        def work():
            return f(a, b)
        """,
        names,
        warmup=1,
    )
    assert profiled.by_line.keys() == {3, 5, 7}
    (fusion,) = profiled.profile.instructions
    assert {location.line for location in fusion.locations} == {3, 5, 7}
    for time in profiled.by_line.values():
        assert 0 < time.total == time.inferred < fusion.time.total
    assert profiled.by_line[3].flops == profiled.by_line[7].flops == N * N
    assert profiled.by_line[5].flops == 2 * N * N


def test_a_loop_is_counted_by_its_rounds(tmp_path: Path, names: dict[str, Any]) -> None:
    profiled = ran(
        tmp_path,
        """
        def body(x, _):
            x = x @ b
            return x, x.sum()

        @jaxtorch.pure
        def f(x):
            return jaxtorch.scan(body, x, torch.arange(7, device="jax"))

        def work():
            return f(a)
        """,
        names,
        warmup=1,
    )
    assert profiled.by_line[2].flops == pytest.approx(7 * PRODUCT, rel=0.01)
    assert "dot_general" not in profiled.operators(3) | profiled.operators(7)


class Net(nn.Module):
    """Two products. The second has 16 times the operations of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.big = nn.Linear(8, 128, bias=False), nn.Linear(128, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.big(torch.tanh(self.small(x)))


@pytest.mark.parametrize("way", ["eager", "pure", "jit"])
def test_module_paths_and_directions(way: str) -> None:
    from jaxtorch.insight.profile import profile

    torch.manual_seed(0)
    net = Net().to("jax")
    x = torch.randn(64, 8, device="jax")

    def whole(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = net(x).sum()
        loss.backward()
        return loss

    pure = jaxtorch.pure(net)

    def by_pure(x: torch.Tensor) -> torch.Tensor:
        net.zero_grad()
        loss = pure(x).sum()
        loss.backward()
        return loss

    work = {"eager": whole, "pure": by_pure, "jit": jaxtorch.jit(whole)}[way]
    profiled = profile(lambda: work(x), warmup=2)
    (top,) = [n for n in profiled.tree.children if n.name == "Net"]
    inner = {node.name: node for node in top.children}
    assert inner.keys() == {"small", "big"}
    products = {name: node.time.flops for name, node in inner.items()}
    # Forward, and the gradients by weight and input; nobody asks for that of x.
    assert products["small"] == pytest.approx(2 * 2 * 64 * 8 * 128, rel=0.2)
    assert products["big"] == pytest.approx(3 * 2 * 64 * 128 * 128, rel=0.2)
    for node in inner.values():
        assert 0 < node.time.backward < node.time.total


def test_what_jax_runs_on_its_own_has_its_own_lines() -> None:
    """Also where the persistent cache had the program with the lines of another file."""
    import jax
    import jax.numpy as jnp

    from jaxtorch.insight import events
    from jaxtorch.insight.profile import profile

    x = jnp.ones((N, N))
    was = events.recording()
    events.start()
    plain = jax.jit(lambda x: x @ x)
    plain(x).block_until_ready()
    profiled = profile(lambda: plain(x).block_until_ready())
    if not was:
        events.stop()
    (row,) = profiled.lines  # this test's lambda, by the HLO
    assert row.location is not None
    assert row.location.file == __file__
    assert row.time.flops == PRODUCT


_SCRIPT = """
import torch, jaxtorch
from jaxtorch.insight.profile import profile
extra = {extra}
for i in range(extra):  # so that programs get other numbers than in the process that filled the cache
    torch.ones(3 + i, device="jax") * 2
x = torch.randn(64, 64, device="jax")
def work():
    y = x @ x
    return y.exp().sum()
result = profile(work)
assert result.attributed == 1.0, result.lines
flops = {{row.location.line: row.time.flops for row in result.lines}}
print(flops[9] == 2 * 64**3, sorted(flops))
"""


@pytest.mark.slow
def test_programs_of_the_persistent_cache_are_identified(tmp_path: Path) -> None:
    """They run under the id that they got in the process that compiled them."""
    outputs = []
    for extra in (0, 5, 2):
        file = tmp_path / "script.py"
        file.write_text(_SCRIPT.format(extra=extra))
        environment = os.environ | {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        done = subprocess.run(
            [sys.executable, str(file)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs == ["True [9, 10]\n"] * 3
