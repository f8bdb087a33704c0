"""Eager operators on sharded tensors give what they give on one device, and keep sharded what they write."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import jax
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import jaxtorch
from tests.sharding.on_8_devices._meshes import AUTO, MESHES, P, Tensor, numbers, sharded, spec_of


def vector(like: Tensor) -> Tensor:
    """A tensor on one device, or on the CPU."""
    return torch.arange(4.0, device=like.device)


def _first_row_doubled(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x


def _a_vector_added(x: Tensor) -> Tensor:
    return x.add_(vector(x))


def _added_to_one_device(x: Tensor) -> Tensor:
    return vector(x).add_(x[1])


def _gradient(x: Tensor) -> Tensor:
    x.requires_grad_()
    (x.sin() * x).sum().backward()
    assert x.grad is not None
    return x.grad


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum() * 2,
    "row": lambda x: x[0] * 2,
    "product": lambda x: x.T @ x,
    "linear": lambda x: nn.functional.linear(x, x[:3], x[:3, 0]),
    "reshape": lambda x: x.reshape(-1) + 1,
    "scalar": lambda x: x * torch.ones((), device=x.device),
    "vector": lambda x: x + vector(x),
    "vector first": lambda x: vector(x) + x,
    "number": lambda x: x * 3.5 + 2,
    "softmax": lambda x: x.softmax(-1),
    "sort": lambda x: x.sort(dim=0).values,
    "cumsum": lambda x: x.cumsum(0),
    "transposed": lambda x: x.t().contiguous(),
    "index": lambda x: x[torch.tensor([0, 3], device=x.device)],
    "mask": lambda x: x[x > 0],
    "cat": lambda x: torch.cat([x, x * 2]),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "norm": lambda x: x.norm(),
    "topk": lambda x: x.topk(2, 0).values,
    "foreach": lambda x: torch._foreach_add([x, x.T, vector(x)], 2)[1],
    "max": lambda x: torch.tensor(x.max().item()),
    "write through a view": _first_row_doubled,
    "write": _a_vector_added,
    "write to one device": _added_to_one_device,
    "gradient": _gradient,
    "zeros_like": torch.zeros_like,
    "clone": torch.clone,
    "to and fro": lambda x: x.cpu().to(x.device),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(
    "spec", [P("data", "model"), P(None, "data"), P(("data", "model"))], ids=str
)
@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name: str, spec: P, mesh: str) -> None:
    x = numbers(8, 4)
    for _ in range(2):  # the second call takes the hot path
        result = CALLS[name](sharded(x, spec, MESHES[mesh]))
    torch.testing.assert_close(
        result.detach().cpu(), CALLS[name](x.clone()).detach(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("spec", [P("data", "model"), P("model"), P(None, "data")], ids=str)
def test_what_is_written_keeps_its_sharding(spec: P) -> None:
    for write in (
        _first_row_doubled,
        _a_vector_added,
        lambda x: x.zero_(),
        lambda x: x.copy_(numbers(8, 4, seed=1)),
        lambda x: x.copy_(sharded(numbers(8, 4), P("data"))),
        lambda x: x.uniform_(),
        lambda x: x.index_fill_(0, torch.tensor([1], device="jax"), 3),
        lambda x: torch.add(x, 1, out=x),
    ):
        x = sharded(numbers(8, 4), spec)
        write(x)
        assert spec_of(x) == spec


def test_a_tensor_on_one_device_moves_to_the_mesh_with_what_is_written_to_it() -> None:
    x, mean = sharded(numbers(8, 4), P("data")), torch.zeros(4, device="jax")
    mean.add_(x.mean(0))
    assert spec_of(mean) == P()
    torch.testing.assert_close(mean.cpu(), numbers(8, 4).mean(0))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "dropout": nn.functional.dropout,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "normal_": lambda x: x.clone().normal_(),
    "multinomial": lambda x: x.softmax(-1).multinomial(2),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_are_those_of_one_device(name: str) -> None:
    x = numbers(8, 4)
    torch.manual_seed(0)
    expected = [DRAWS[name](x.to("jax")).cpu() for _ in range(3)]
    torch.manual_seed(0)
    on_mesh = sharded(x, P("data", "model"))
    result = [DRAWS[name](x.to("jax") if i == 1 else on_mesh).cpu() for i in range(3)]
    assert all(map(torch.equal, result, expected))


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW, foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
}


def _trained(make: Callable[[list[Tensor]], torch.optim.Optimizer], shard: bool) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    x = numbers(8, 4)
    if shard:
        for layer in (model[0], model[3]):
            layer.weight = nn.Parameter(sharded(layer.weight.detach(), P("model")))
            layer.bias = nn.Parameter(sharded(layer.bias.detach(), P("model")))
        model, x = model.to("jax"), sharded(x, P("data"))
    optimizer = make(list(model.parameters()))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    if shard:
        for parameter in (model[0].weight, model[3].weight):
            state = [s for s in optimizer.state[parameter].values() if isinstance(s, Tensor)]
            alike = [s for s in state if s.shape == parameter.shape]
            assert {spec_of(t) for t in (parameter, *alike)} == {P("model")}
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name: str) -> None:
    expected = _trained(OPTIMIZERS[name], shard=False)
    assert _trained(OPTIMIZERS[name], shard=True) == pytest.approx(expected, rel=1e-4)


def test_two_meshes_are_one_clear_error() -> None:
    mesh = jax.make_mesh((4,), ("d",), devices=jax.devices()[:4])
    other = sharded(numbers(8, 4), P("d"), mesh)
    with pytest.raises(
        RuntimeError, match=r"add.Tensor: the inputs are on two meshes, .*'model': 2"
    ):
        sharded(numbers(8, 4), P("data")) + other


# -- many programs in flight -----------------------------------------------------------------------------------------


def _centered(x: Tensor) -> Tensor:
    return x - x.mean(0)


def _laid_out_twice(x: Tensor) -> Tensor:
    return jaxtorch.reshard(jaxtorch.reshard(x, P(None, "data")), P("data", "model"))


def _dropped(x: Tensor) -> Tensor:
    x.sum()
    return x


def _with_gradient(x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    (leaf.T @ leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.sign()


UNREAD: dict[str, Callable[[Tensor], Tensor]] = {
    "new": _centered,
    "written": lambda x: x.sub_(x.mean(0)),
    "laid out": _laid_out_twice,
    "dropped": _dropped,
    "gradient": _with_gradient,
    "jit": jaxtorch.jit(_centered),
    "pure": jaxtorch.pure(_with_gradient),
}


@pytest.mark.parametrize("name", UNREAD)
def test_calls_that_nothing_waits_for(name: str) -> None:
    """XLA's CPU client ends the process if more than 32 programs with collectives are in flight."""
    x = sharded(numbers(8, 4), P("data", "model"))
    for _ in range(300):
        x = UNREAD[name](x)
    assert torch.isfinite(x).all()


# -- random programs -----------------------------------------------------------------------------------------------

UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.sin,
    lambda x: x * 2.5,
    lambda x: x.t(),
    lambda x: x[:4, :4] if min(x.shape) >= 4 else x,
    lambda x: x[::2] if x.shape[0] >= 8 else x,
    lambda x: x.softmax(0),
    lambda x: x.cumsum(1),
    lambda x: x.flip(0),
    lambda x: x.reshape(x.shape[1], x.shape[0]),
    lambda x: x - x.mean(1, keepdim=True),
    lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: (x @ y.t() @ y).tanh() if x.shape[1] == y.shape[1] else x,
    lambda x, y: x + y if x.shape == y.shape else x,
    lambda x, y: x + y[0] if x.shape[1] == y.shape[1] else x,
    lambda x, y: x.clone().copy_(y.mean()).tanh() + x.cos(),
    lambda x, y: x.clone().addcmul_(x, x, value=0.1),
]


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_random_programs(data: st.DataObject) -> None:
    """Of eager operators over random shardings, and tensors on one device."""
    specs = st.sampled_from(
        [None, P(), P("data"), P("model", "data"), P(None, "model"), P(("data", "model"))]
    )
    ours, theirs = [], []
    for i, size in enumerate(((8, 8), (8, 8), (16, 8))):
        x, spec = numbers(*size, seed=i), data.draw(specs)
        theirs.append(x)
        ours.append(x.to("jax") if spec is None else sharded(x, spec, AUTO))
    for _ in range(data.draw(st.integers(1, 8))):
        i, j = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
        if data.draw(st.booleans()):
            unary = data.draw(st.sampled_from(UNARY))
            ours[i], theirs[i] = unary(ours[i]), unary(theirs[i])
        else:
            binary = data.draw(st.sampled_from(BINARY))
            ours[i], theirs[i] = binary(ours[i], ours[j]), binary(theirs[i], theirs[j])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("capture", [lambda f: f, jaxtorch.pure, jaxtorch.jit])
@pytest.mark.parametrize("order", [(2, 0, 1), (1, 0, 2), (0, 2, 1)])
def test_copies_whose_parts_have_a_size_of_1(
    capture: Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]],
    order: tuple[int, ...],
) -> None:
    """One row of eight on each device: XLA may take a transpose of the part for a reshape."""

    def run(x: Tensor) -> Tensor:
        return x.permute(order).sum(1).flip(1)

    x = numbers(8, 3, 8)
    found = capture(run)(jaxtorch.shard(x, "data", jaxtorch.mesh(8, "data")))
    torch.testing.assert_close(found.cpu(), run(x))
