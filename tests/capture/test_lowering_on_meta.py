"""Programs of tensors on the meta device, and of several chips: lowered without memory for a weight."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest
import torch
from jax.sharding import AbstractMesh, PartitionSpec
from torch import nn
from torch.utils.checkpoint import checkpoint

import jaxtorch
from jaxtorch.capture.tpu import shared_compiler
from tests.libtpu import missing

P = PartitionSpec
Optimizer = torch.optim.Optimizer
_OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), 0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters()),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters()),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters()),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters()),
    "Muon": lambda m: torch.optim.Muon([p for p in m.parameters() if p.dim() == 2]),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters()),
}


def model_on(device: str, width: int = 8) -> nn.Module:
    with torch.device(device):
        return nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))


def step_of(model: nn.Module, optimizer: Optimizer) -> jaxtorch.capture.jit.Jit:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return jaxtorch.jit(step)


def kinds(avals: Sequence[jax.core.AbstractValue]) -> list[str]:
    """Dtypes and sizes. A gradient may have dimensions of 1 in its memory, which no tensor shows."""
    return sorted(f"{a.dtype}{[n for n in a.shape if n != 1]}" for a in avals)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_a_step_on_meta_is_the_step_on_the_device(name: str) -> None:
    programs = []
    for device in ("meta", "jax"):
        model = model_on(device)
        optimizer = _OPTIMIZERS[name](model)
        before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        lowered = step_of(model, optimizer).lower(torch.empty(4, 8, device=device))
        programs += map(kinds, (lowered.jaxpr.in_avals, lowered.jaxpr.out_avals))
        if device == "meta":
            assert {p.device.type for p in model.parameters()} == {"meta"}
            assert all(p.grad is None for p in model.parameters())
            assert list(optimizer.state) == list(before)
            for parameter, state in optimizer.state.items():
                assert list(state) == list(before[parameter])
                assert all(value is before[parameter][name] for name, value in state.items())
    assert programs[:2] == programs[2:]


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_what_a_step_reads_of_its_optimizer_is_what_it_writes(name: str) -> None:
    """All state is an input, also what is created with the shape of a gradient (Muon, Rprop)."""
    model = model_on("meta")
    optimizer = _OPTIMIZERS[name](model)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        model.zero_grad()

    lowered = jaxtorch.jit(step).lower(torch.empty(4, 8, device="meta"))
    updated = sum(len(group["params"]) for group in optimizer.param_groups)
    state = [i for i in lowered.inputs if i.role == "optimizer state"]
    assert len(lowered.jaxpr.out_avals) == updated + len(state)
    assert bool(state) == (name != "SGD")


@pytest.mark.parametrize("name", [*_OPTIMIZERS, "ASGD"])
def test_a_step_runs_as_before_after_it_was_lowered(name: str) -> None:
    losses = []
    for lowers in (False, True):
        torch.manual_seed(0)
        model = model_on("jax")
        make = _OPTIMIZERS.get(name, lambda m: torch.optim.ASGD(m.parameters()))
        step = step_of(model, make(model))
        x = torch.ones(4, 8, device="jax")
        if lowers:
            step.lower(x)
        losses.append([step(x).item() for _ in range(3)])
    assert losses[0] == losses[1]


# How a step calls a block whose parameters are no arguments of the call.
_CALLS: dict[str, Callable[[nn.Module, torch.Tensor], Any]] = {
    "checkpoint": lambda m, x: checkpoint(m, x, use_reentrant=False),
    "reentrant checkpoint": lambda m, x: checkpoint(m, x, use_reentrant=True),
    "scan": lambda m, x: jaxtorch.scan(lambda c, row: (c + m(row), None), x[0] * 0, x)[0],
    "cond": lambda m, x: torch.cond(x.sum() > 0, lambda x: m(x), lambda x: x * 2, (x,)),
    "branch": lambda m, x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: m(x), (x,)),
    "map": lambda m, x: torch._higher_order_ops.map(lambda row: m(row), x),
}


@pytest.mark.parametrize("first", [False, True], ids=["alone", "after a layer"])
@pytest.mark.parametrize("name", _CALLS)
def test_a_block_that_closes_over_its_parameters_is_trained(name: str, first: bool) -> None:
    """The program on meta is that on the device: it reads and writes all parameters and their state."""
    programs = []
    for device in ("meta", "jax"):
        model, x = model_on(device), torch.ones(4, 8, device=device)
        before = nn.Linear(8, 8, device=device)
        parameters = [*before.parameters()] * first + [*model.parameters()]
        optimizer = torch.optim.AdamW(parameters)

        def loss_of(x: torch.Tensor, model: Any = model, before: Any = before) -> torch.Tensor:
            return _CALLS[name](model, before(x) if first else x).square().mean()

        def step(x: torch.Tensor, loss_of: Any = loss_of, optimizer: Any = optimizer) -> None:
            loss_of(x).backward()
            optimizer.step()
            optimizer.zero_grad()

        lowered = jaxtorch.jit(step).lower(x)
        roles = Counter(one.role for one in lowered.inputs)
        assert roles["optimizer state"] >= 2 * len(parameters)
        gradients = jaxtorch.pure(loss_of).lower(x, gradients=True)
        for one in (lowered, gradients):
            programs += [kinds(one.jaxpr.in_avals), kinds(one.jaxpr.out_avals)]
    assert programs[:4] == programs[4:]


def test_a_model_larger_than_memory_is_lowered() -> None:
    model = model_on("meta", 1 << 20)  # two weights of 8 TiB
    optimizer = torch.optim.AdamW(model.parameters())
    step = step_of(model, optimizer)
    lowered = step.lower(torch.empty(4, 1 << 20, device="meta"), target="v5e:1x1")
    for _ in range(2):  # nothing has changed: the second time gives the same
        assert lowered.as_text().count("tensor<2097152x1048576xf32>") > 4
        lowered = step.lower(torch.empty(4, 1 << 20, device="meta"), target="v5e:1x1")


def test_a_pure_program_on_meta_with_its_gradients() -> None:
    model = model_on("meta", 1 << 20)
    lowered = jaxtorch.pure(model).lower(torch.empty(4, 1 << 20, device="meta"), gradients=True)
    shapes = [tuple(aval.shape) for aval in lowered.jaxpr.out_avals]
    assert shapes[0] == (4, 1 << 20)
    assert (1 << 21, 1 << 20) in shapes


@pytest.mark.parametrize("mesh", [{"data": 4, "model": 2}, AbstractMesh((4, 2), ("data", "model"))])
@pytest.mark.parametrize("device", ["meta", "jax"])
def test_state_lies_like_its_parameter(mesh: object, device: str) -> None:
    model = model_on(device)
    step = step_of(model, torch.optim.AdamW(model.parameters()))
    rules = {"x": P("data"), "model.0.weight": P("model", "data"), "*.weight": P(None, "model")}
    lowered = step.lower(
        torch.empty(4, 8, device=device), target="v5e:2x4", mesh=mesh, shardings=rules
    )
    text = lowered.as_text()
    assert "num_partitions = 8" in text
    heading = text[: text.index("->")]
    for name in ("model.0.weight", r"\w+.exp_avg.0", r"\w+.exp_avg_sq.0"):
        assert re.search(rf'%{name}: [^%]*@mesh, \[{{"model"}}, {{"data"}}\]', heading), name
    results = text[text.index("->") : text.index("\n", text.index("->"))]
    assert results.count('@mesh, [{"model"}, {"data"}]') == 3  # they stay where they are


def spec_of(lowered: Any, name: str) -> P:
    (spec,) = (
        aval.sharding.spec
        for one, aval in zip(lowered.inputs, lowered.avals, strict=True)
        if one.name == name
    )
    return spec


def test_a_function_of_the_names_is_asked_about_parameters_alone() -> None:
    """Names of state do not say whose it is: a rule by shapes divided it otherwise than the parameter."""

    def rule(name: str, shape: tuple[int, ...]) -> P:
        if name == "model.0.weight":
            return P(None, "data")
        return P("data") if shape and shape[0] % 4 == 0 else P()

    model = model_on("meta")
    step = step_of(model, torch.optim.AdamW(model.parameters()))
    lowered = step.lower(
        torch.empty(4, 8, device="meta"), target="v5e:2x2", mesh={"data": 4}, shardings=rule
    )
    for name in ("model.0.weight", "optimizer.exp_avg[0]", "optimizer.exp_avg_sq[0]"):
        assert spec_of(lowered, name) == P(None, "data"), name
    assert spec_of(lowered, "optimizer.exp_avg[1]") == spec_of(lowered, "model.0.bias") == P("data")


def test_a_pattern_may_divide_the_state_alone() -> None:
    """As in ZeRO-1: each chip has all of the parameters, and a part of the state."""
    model = model_on("meta")
    step = step_of(model, torch.optim.AdamW(model.parameters()))
    rules = {"x": P("data"), "optimizer.exp_avg*[[]0]": P("data")}
    lowered = step.lower(
        torch.empty(4, 8, device="meta"), target="v5e:2x2", mesh={"data": 4}, shardings=rules
    )
    assert spec_of(lowered, "model.0.weight") == P()
    assert spec_of(lowered, "optimizer.exp_avg[0]") == P("data")
    assert spec_of(lowered, "optimizer.exp_avg[1]") == P()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "v5e"}, "v5e:1x1"),
        ({"mesh": {"data": 2}}, "target='v5e:2x2'"),
        ({"target": "v5e:2x2", "mesh": {"data": 2}}, "has 2 devices, but 'v5e:2x2' has 4"),
        ({"target": "v5e:2x2", "shardings": {"y": P()}}, "no input of the program matches 'y'"),
        ({"target": "v5e:2x2", "shardings": {"x": P("data")}}, "cannot be sharded"),
        ({"target": "v5e:2x4", "shardings": {"x": P("chips")}}, "cannot be sharded"),
        ({"target": "v5e:2x2", "shardings": {"x": P("data")}}, "the mesh has no axis 'data'"),
        ({"target": "v5e:2x2", "shardings": {"x": P("chips", "chips")}}, "is used more than once"),
        (
            {"target": "v5e:2x2", "shardings": {"x": P(None, None, "chips")}},
            "entries for 2 dimensions",
        ),
        ({"target": "v5e:2x2", "shardings": {"x": "chips"}}, "P('chips'), not 'chips'"),
        ({"target": "v5e:2x2", "shardings": lambda name, shape: ("chips",)}, "not ('chips',)"),
        ({"target": "v5e:2x2", "shardings": P("chips")}, "for each pattern of names"),
        ({"target": "v5e:2x2", "shardings": [1]}, "for each pattern of names"),
        ({"target": "v5e:2x2", "mesh": [4]}, "such as {'data': 4}, not [4]"),
        ({"target": "v5e:2x2", "mesh": {"data": "4"}}, "such as {'data': 4}"),
    ],
)
def test_what_does_not_fit_is_one_sentence(options: dict[str, object], message: str) -> None:
    f = jaxtorch.pure(lambda x: x + 1)
    with pytest.raises((ValueError, TypeError), match=re.escape(message)) as error:
        f.lower(torch.empty(4, 3, device="meta"), **options)
    assert "\n" not in str(error.value)


def test_a_sharded_step_compiled_for_four_chips() -> None:
    if reason := missing():
        pytest.skip(reason)
    model = model_on("meta", 512)
    step = step_of(model, torch.optim.AdamW(model.parameters()))
    x = torch.empty(64, 512, device="meta")
    with shared_compiler():
        whole = step.lower(x, target="v5e:1x1").compile().memory_analysis()
        shardings = {"*.weight": P("data"), "*.bias": P("data"), "x": P("data")}
        lowered = step.lower(x, target="v5e:2x2", mesh={"data": 4}, shardings=shardings)
        sharded = lowered.compile()
    memory = sharded.memory_analysis()
    assert memory.argument_size_in_bytes == pytest.approx(
        whole.argument_size_in_bytes / 4, rel=0.02
    )
    # What is written reuses the memory of what was read.
    assert memory.alias_size_in_bytes == pytest.approx(memory.argument_size_in_bytes, rel=0.05)
    assert "all-gather" in sharded.hlo


@pytest.mark.parametrize("code", [
    "jaxtorch.jit(lambda: torch.ones(3, device='jax').sum())()",
    "jaxtorch.pure(lambda: torch.ones(3, device='jax').sum())()",
    "jaxtorch.jit(lambda x: x.sum()).lower(torch.empty(3, device='meta'))",
])  # fmt: skip
def test_the_start_of_the_device_is_no_part_of_captured_code(code: str) -> None:
    """In a process of its own, where nothing has used the device before."""
    program = f"import torch, jaxtorch\n{code}"
    command = [sys.executable, "-W", "error::UserWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
