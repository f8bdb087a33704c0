"""Checkpoints: saved on one mesh, restored on another, and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Build = Callable[[], nn.Module]


class Net(nn.Module):
    """Tied weights, a buffer of integers, half precision, an empty tensor and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(8)
        self.small = nn.Parameter(torch.randn(8, 8, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.tensor(2**40))
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        h = self.norm(self.embed(x))
        return self.head(h @ self.small.float())


def on_cpu() -> nn.Module:
    return Net()


def on_device() -> nn.Module:
    return Net().jax()


def over(*shape: int) -> Build:
    names = ("data", "model")[: len(shape)]

    def build() -> nn.Module:
        return jaxtorch.fsdp(Net().jax(), jaxtorch.mesh(shape, names), axis="data")

    build.__name__ = f"over_{'x'.join(map(str, shape))}"
    return build


PLACES = [on_cpu, on_device, over(8), over(4, 2), over(2)]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    device = next(model.parameters()).device
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randint(16, (8,), generator=generator).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.detach().cpu()]
    if isinstance(state, dict):
        return [leaf for key in state for leaf in values(state[key])]
    return [leaf for node in state for leaf in values(node)] if isinstance(state, list) else []


def assert_same(one: object, other: object) -> None:
    a, b = values(one), values(other)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(
            x.view(torch.uint8) if x.dim() else x, y.view(torch.uint8) if y.dim() else y
        )


def spec_of(x: Tensor) -> object:
    return jaxtorch.sharding_of(x) if x.device.type == "jax" else "cpu"


@pytest.mark.parametrize("to", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("source", [over(8), on_cpu], ids=lambda f: f.__name__)
def test_it_is_restored_bit_by_bit_where_the_model_lies(
    source: Build, to: Build, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = source()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, step=2)
    torch.manual_seed(1)
    other = to()
    where = [spec_of(p) for p in other.parameters()]
    parameters = list(other.parameters())
    again = optimizer_of(other)
    assert jaxtorch.restore_checkpoint(tmp_path, other, again) == 2
    assert_same(model.state_dict(), other.state_dict())
    assert_same(optimizer.state_dict()["state"], again.state_dict()["state"])
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    assert other.head.weight is other.embed.weight
    assert [spec_of(p) for p in other.parameters()] == where
    for parameter in other.parameters():
        moments = again.state[parameter]
        assert spec_of(moments["exp_avg"]) == spec_of(parameter)
        assert spec_of(moments["exp_avg_sq"]) == spec_of(parameter)


def test_training_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = over(8)()
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, range(3))
    scheduler.step()
    extra = {"scheduler": scheduler, "epoch": 7, "seen": torch.arange(3, device="jax")}
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, 3, extra=extra)
    noise = torch.randn(4, device="jax"), torch.randn(4)
    rest = train(model, optimizer, range(3, 6))  # while it is written
    again = over(8)()
    new = optimizer_of(again)
    found: dict[str, object] = {
        "scheduler": torch.optim.lr_scheduler.StepLR(new, 1, 0.5),
        "epoch": 0,
    }
    assert jaxtorch.restore_checkpoint(tmp_path, again, new, extra=found) == 3
    assert new.param_groups[0]["lr"] == 5e-3
    assert found["epoch"] == 7
    assert torch.equal(found["seen"].cpu(), torch.arange(3))
    assert found["scheduler"].last_epoch == 1
    assert torch.equal(torch.randn(4, device="jax"), noise[0])
    assert torch.equal(torch.randn(4), noise[1])
    assert train(again, new, range(3, 6)) == rest


def test_captured_steps_that_donate_do_not_reach_it(tmp_path: Path) -> None:
    model = nn.Linear(512, 512).jax()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.ones(4, 512, device="jax")

    @jaxtorch.jit
    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    before = model.weight.detach().cpu()
    jaxtorch.save_checkpoint(tmp_path, model, step=1)
    for _ in range(5):
        step()
    assert not torch.equal(model.weight.detach().cpu(), before)
    jaxtorch.restore_checkpoint(tmp_path, model)
    assert torch.equal(model.weight.detach().cpu(), before)


def test_only_the_last_ones_stay(tmp_path: Path) -> None:
    model = nn.Linear(2, 2).jax()
    for step in range(1, 6):
        model.weight.data.fill_(step)
        jaxtorch.save_checkpoint(tmp_path, model, step=step, keep=2, wait=True)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["4", "5"]
    jaxtorch.restore_checkpoint(tmp_path, model, step=4)
    assert model.weight[0, 0].item() == 4


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    extra = {"best": np.float64(1.5), "seen": [np.int32(3), np.bool_(True)]}
    jaxtorch.save_checkpoint(tmp_path, model, step=np.int64(1), extra=extra)
    found: dict[str, object] = {}
    assert jaxtorch.restore_checkpoint(tmp_path, model, extra=found) == 1
    assert found == {"best": 1.5, "seen": [3, True]}


class Renamed(torch.optim.AdamW):
    """Its class has another name than the one that was saved."""


@pytest.mark.parametrize("kind", [torch.optim.Adam, Renamed])
def test_an_optimizer_with_the_same_options_takes_the_state(
    kind: type[torch.optim.Adam], tmp_path: Path
) -> None:
    model = nn.Linear(2, 3).jax()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device="jax")).sum().backward()
    optimizer.step()
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, step=1)
    again = kind(model.parameters())
    jaxtorch.restore_checkpoint(tmp_path, model, again)
    assert_same(optimizer.state_dict()["state"], again.state_dict()["state"])


def test_specs_that_do_not_follow_the_first_dimension(tmp_path: Path) -> None:
    mesh = jaxtorch.mesh((4, 2), ("data", "model"))
    x = jaxtorch.shard(nn.Linear(8, 16, bias=False).jax(), {"weight": P("model", "data")}, mesh)
    jaxtorch.save_checkpoint(tmp_path, x, step=1)
    y = jaxtorch.shard(nn.Linear(8, 16, bias=False).jax(), {"weight": P(None, "model")}, mesh)
    jaxtorch.restore_checkpoint(tmp_path, y)
    assert torch.equal(x.weight.cpu(), y.weight.cpu())
    assert spec_of(y.weight).spec == P(None, "model")
