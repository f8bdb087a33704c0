"""`mesh`, `shard`, `reshard`, `replicate`, `distribute_tensor`, `sharding_of`: tensors, containers, modules."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import jax
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, Mesh, NamedSharding
from torch import nn
from torch.distributed.tensor import Replicate, Shard

import jaxtorch
from jaxtorch.insight import sharding as insight
from jaxtorch.parallel.specs import Spec
from tests.sharding.on_8_devices._meshes import AUTO, EXPLICIT, P, Tensor, numbers, spec_of

FOUR = jaxtorch.mesh(4, "data")


# -- meshes --------------------------------------------------------------------------------------------------------


def test_a_mesh() -> None:
    whole = jaxtorch.mesh((4, 2), ("data", "model"))
    assert whole == jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    assert jaxtorch.mesh((-1, 2), ("data", "model")).shape == whole.shape
    assert jaxtorch.mesh(3, "x").size == 3
    assert jaxtorch.mesh(2, "x", devices=jax.devices()[6:]).devices.tolist() == jax.devices()[6:]
    explicit = jaxtorch.mesh((4, 2), ("data", "model"), axis_types=AxisType.Explicit)
    assert explicit == EXPLICIT
    assert jaxtorch.init_device_mesh("jax", (2, 2)).axis_names == ("dim_0", "dim_1")


# -- tensors -------------------------------------------------------------------------------------------------------

FORMS: dict[str, tuple[Spec, P]] = {
    "P": (P("data", "model"), P("data", "model")),
    "P of two axes": (P(("data", "model")), P(("data", "model"))),
    "name": ("model", P("model")),
    "list": ([None, "data"], P(None, "data")),
    "tuple": (("data", None), P("data")),
    "NamedSharding": (NamedSharding(AUTO, P("model")), P("model")),
    "None": (None, P()),
    "placements": ([Shard(1), Replicate()], P(None, "data")),
    "placements of one dimension": ([Shard(0), Shard(0)], P(("data", "model"))),
    "placements of two dimensions": ([Shard(1), Shard(0)], P("model", "data")),
    "placements, replicated": ([Replicate(), Replicate()], P()),
}


@pytest.mark.parametrize("on", ["cpu", "jax", "mesh", "view"])
@pytest.mark.parametrize("form", FORMS)
def test_a_tensor(form: str, on: str) -> None:
    spec, expected = FORMS[form]
    x = numbers(8, 8)
    given = {
        "cpu": lambda: x,
        "jax": lambda: x.to("jax"),
        "mesh": lambda: jaxtorch.shard(x, P(None, "model"), EXPLICIT),
        "view": lambda: jaxtorch.shard(x.t(), "data", AUTO).t(),
    }[on]()
    before = given.clone()
    result = jaxtorch.shard(given, spec, AUTO)
    assert spec_of(result) == expected
    assert jaxtorch.sharding_of(result).is_equivalent_to(NamedSharding(AUTO, expected), 2)
    assert torch.equal(result.cpu(), x)
    assert torch.equal(given, before)
    assert jaxtorch.shard(result, spec, AUTO) is result


def test_a_tensor_of_any_dtype() -> None:
    for dtype in (torch.int64, torch.float64, torch.bool, torch.bfloat16, torch.complex64):
        x = torch.arange(8).to(dtype)
        result = jaxtorch.shard(x, "data", AUTO)
        assert (result.dtype, spec_of(result)) == (dtype, P("data"))
        assert torch.equal(result.cpu(), x)
    assert spec_of(jaxtorch.shard(torch.zeros(0, 4), P("data", "model"), AUTO)) == P(
        "data", "model"
    )
    assert spec_of(jaxtorch.replicate(torch.tensor(3), AUTO)) == P()


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT, FOUR, jaxtorch.mesh(1, "data")], ids=str)
def test_a_mesh_of_any_size(mesh: Mesh) -> None:
    x = jaxtorch.shard(numbers(8, 4), "data", mesh)
    assert spec_of(x) == P("data")
    assert torch.equal(
        (x.sum(1) * 2 + torch.ones(8, device="jax")).cpu(), numbers(8, 4).sum(1) * 2 + 1
    )
    assert spec_of(jaxtorch.reshard(x, [None, "data"])) == P(None, "data")
    assert spec_of(jaxtorch.replicate(x)) == P()


def test_the_mesh_of_the_context() -> None:
    with jax.set_mesh(AUTO):
        x = jaxtorch.shard(numbers(8, 4), P("data", "model"))
        assert spec_of(jaxtorch.reshard(x, P("model"))) == P("model")
        assert spec_of(jaxtorch.with_sharding_constraint(x, P("model"))) == P("model")
        layer = jaxtorch.shard(nn.Linear(4, 8), {"weight": P("model")})
    assert spec_of(layer.weight) == P("model")
    assert spec_of(jaxtorch.reshard(x, P(None, "data"))) == P(None, "data")


def test_containers() -> None:
    batch = {"x": numbers(8, 4), "others": [numbers(8), torch.tensor(2.0)], "name": "batch"}
    specs = {"x": P("data"), "others": [P("model"), None], "name": None}
    result = jaxtorch.shard(batch, specs, AUTO)
    assert [spec_of(t) for t in (result["x"], *result["others"])] == [P("data"), P("model"), P()]
    assert result["name"] == "batch"
    first, second = jaxtorch.shard((numbers(8), numbers(4, 8)), "data", FOUR)
    assert (spec_of(first), spec_of(second)) == (P("data"), P("data"))


def test_gradients_return_to_where_the_tensor_lies() -> None:
    x = numbers(8, 4).requires_grad_()
    (jaxtorch.shard(x, "data", AUTO) ** 3).sum().backward()
    assert torch.allclose(x.grad, 3 * x**2)
    y = jaxtorch.shard(numbers(8, 4), P("model"), AUTO).requires_grad_()
    z = jaxtorch.reshard(y, P(None, "data"))
    (gradient,) = torch.autograd.grad((z**3).sum(), y, create_graph=True)
    gradient.sum().backward()
    assert spec_of(y.grad) == spec_of(gradient) == P("model")
    assert torch.allclose(y.grad.cpu(), 6 * numbers(8, 4))


def test_distribute_tensor() -> None:
    w = jaxtorch.distribute_tensor(numbers(8, 4).requires_grad_(), AUTO, [Shard(0), Replicate()])
    assert (w.is_leaf, w.requires_grad, spec_of(w)) == (True, True, P("data"))
    (w * 2).sum().backward()
    assert torch.equal(w.grad.cpu(), torch.full((8, 4), 2.0))
    assert spec_of(jaxtorch.distribute_tensor(numbers(8), FOUR)) == P()
    last = jaxtorch.distribute_tensor(numbers(8, 4), AUTO, [Shard(-1), Shard(-2)])
    assert spec_of(last) == P("model", "data")
    with pytest.raises(RuntimeError, match="distribute_tensor takes leaf tensors"):
        jaxtorch.distribute_tensor(w * 2, AUTO, [Shard(0), Replicate()])


def test_a_constraint_keeps_what_it_leaves_open() -> None:
    x = jaxtorch.shard(numbers(8, 4), P("data", "model"), AUTO)
    free = P.UNCONSTRAINED
    for spec, expected in (
        (P(free, None), P("data")),
        (P(None, free), P(None, "model")),
        (P("model", free), P("model")),
        (P(free, free), P("data", "model")),
    ):
        result = jaxtorch.with_sharding_constraint(x, NamedSharding(AUTO, spec))
        assert spec_of(result) == expected
    one = jaxtorch.with_sharding_constraint(numbers(8).to("jax"), NamedSharding(AUTO, P(free)))
    assert spec_of(one) == P()


WAYS: dict[str, Callable[[Callable[..., Tensor]], Callable[..., Tensor]]] = {
    "eager": lambda f: f,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "compile": lambda f: torch.compile(f, backend="jax", fullgraph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_in_a_function(way: str) -> None:
    """What `shard` and its relatives do to values is nothing, and to gradients too."""

    rows, both = P("model"), NamedSharding(AUTO, P("data", "model"))

    def f(x: Tensor) -> Tensor:
        y = jaxtorch.shard(x.sin(), rows, AUTO)
        y = jaxtorch.reshard(y * 2, [None, "data"], AUTO)
        y = jaxtorch.with_sharding_constraint(y + x, both)
        return jaxtorch.replicate(y.exp(), AUTO) * 3

    def g(x: Tensor) -> Tensor:
        return (x.sin() * 2 + x).exp() * 3

    x = jaxtorch.shard(numbers(8, 4), P("data"), AUTO).requires_grad_()
    expected = numbers(8, 4).requires_grad_()
    y, y_expected = WAYS[way](f)(x), g(expected)
    torch.testing.assert_close(y.cpu(), y_expected, rtol=1e-5, atol=1e-5)
    if way != "jit":
        y.sum().backward()
        y_expected.sum().backward()
        torch.testing.assert_close(x.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-5)
        assert way == "eager" or spec_of(x.grad) == P("data")


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("way", WAYS)
def test_the_mesh_of_the_context_in_a_function(way: str, mesh: Mesh) -> None:
    spec = P("data", "model")
    run = WAYS[way](lambda x: jaxtorch.with_sharding_constraint(x * 2, spec))
    with jax.set_mesh(mesh):
        for x in (jaxtorch.shard(numbers(8, 4), P("data")), numbers(8, 4).to("jax")):
            y = run(x)
            assert spec_of(y) == spec
            assert torch.equal(y.cpu(), numbers(8, 4) * 2)


# -- modules -------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Two tied layers, a norm with buffers, and a parameter without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(8, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 8, bias=False)
        self.out.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, i: Tensor) -> Tensor:
        return self.out(self.norm(self.embed(i))) * self.scale


RULES: dict[str, Spec] = {
    "out.weight": P("model", "data"),
    "norm.num_batches_tracked": None,
    "*norm.*": "data",
    "*": None,
}


@pytest.mark.parametrize("on", ["cpu", "jax", "mesh"])
def test_a_module_is_changed_in_place(on: str) -> None:
    model, ids = Tied(), torch.arange(8)
    expected = Tied()
    expected(ids).square().sum().backward()
    if on == "jax":
        model.to("jax")
    elif on == "mesh":
        jaxtorch.replicate(model, FOUR)
    model(ids.to(model.scale.device)).square().sum().backward()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
    seen: list[Tensor] = []
    model.embed.weight.register_hook(seen.append)
    gradient = model.embed.weight.grad

    assert jaxtorch.shard(model, RULES, AUTO) is model

    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert all(now[name] is tensors[name] for name in tensors)
    assert all(torch.equal(now[name].cpu(), values[name]) for name in tensors)
    assert model.out.weight is model.embed.weight
    assert model.embed.weight.grad is gradient
    specs = {name: spec_of(tensor) for name, tensor in now.items()}
    assert specs["embed.weight"] == spec_of(gradient) == P("model", "data")
    assert specs["norm.weight"] == specs["norm.running_mean"] == P("data")
    assert specs["scale"] == specs["norm.num_batches_tracked"] == P()
    assert not model.scale.requires_grad
    model(ids.jax()).square().sum().backward()
    expected(ids).square().sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(gradient.cpu(), expected.embed.weight.grad, rtol=1e-4, atol=1e-4)


def test_parameters_over_the_same_memory_stay_tied() -> None:
    for device in ("cpu", "jax"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(device)
        model[1].weight.data = model[0].weight.data
        jaxtorch.shard(model, {"0.weight": "data", "1.weight": "data"}, AUTO)
        with torch.no_grad():
            model[0].weight.fill_(3)
        assert model[1].weight.sum().item() == 48
        assert spec_of(model[1].weight) == P("data")


def test_a_parameter_that_is_a_view() -> None:
    flat = torch.arange(24.0, device="jax")
    model = nn.Linear(4, 4, device="jax")
    model.weight.data = flat[:16].view(4, 4).t()
    jaxtorch.shard(model, "data", FOUR)
    assert torch.equal(model.weight.cpu(), torch.arange(16.0).view(4, 4).t())
    assert spec_of(model.weight) == P("data")


def test_the_first_rule_that_matches_counts() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    jaxtorch.shard(model, {"0.weight": "model", "*.weight": P(None, "data")}, AUTO)
    assert (spec_of(model[0].weight), spec_of(model[1].weight)) == (P("model"), P(None, "data"))
    assert spec_of(model[0].bias) == P()
    jaxtorch.shard(model, {"1.bias": "model"}, AUTO)  # the others stay
    assert (spec_of(model[0].weight), spec_of(model[1].bias)) == (P("model"), P("model"))
    jaxtorch.replicate(model)
    assert {spec_of(p) for p in model.parameters()} == {P()}


def test_what_torch_does_with_a_sharded_module() -> None:
    model = jaxtorch.shard(nn.Linear(4, 8), {"weight": P("model"), "bias": "data"}, AUTO)
    other = nn.Linear(4, 8)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert spec_of(state["weight"]) == spec_of(copy.deepcopy(model).weight) == P("model")
    assert "device='jax:0'" in repr(model.weight)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, map_location="cpu"))
    assert torch.equal(other.weight, model.weight.cpu())
    other.weight.data.add_(1)
    model.load_state_dict(other.state_dict())
    assert torch.equal(other.weight, model.weight.cpu())
    assert (spec_of(model.weight), spec_of(model.bias)) == (P("model"), P("data"))
    model.to("jax")
    assert spec_of(model.weight) == P("model")
    model.to(torch.bfloat16)
    assert spec_of(model.weight) == P("model")
    assert model.cpu().weight.device.type == "cpu"


def test_an_optimizer() -> None:
    model = nn.Linear(4, 8, device="jax")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(numbers(2, 4).to("jax")).sum().backward()
    optimizer.step()
    jaxtorch.shard(model, {"weight": P("model")}, AUTO)
    assert jaxtorch.shard(optimizer) is optimizer
    assert spec_of(optimizer.state[model.weight]["exp_avg"]) == P("model")
    saved = optimizer.state_dict()
    optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict() | saved)
    optimizer.step()
    assert spec_of(optimizer.state[model.weight]["exp_avg"]) == P("model")


def test_a_sharding_in_captured_code_is_unknown() -> None:
    f = jaxtorch.pure(lambda x: x * len(jaxtorch.sharding_of(x).device_set))
    with pytest.raises(Exception, match="the sharding of a tensor in captured code is not known"):
        f(torch.ones(2, device="jax"))


@pytest.mark.parametrize("view", ["x", "x[0]", "x.T", "x.reshape(2, 4, 4)", "x[:, 1:3]", "x[1, 2]"])
def test_the_drawing_of_a_view_is_of_the_view(view: str) -> None:
    x = jaxtorch.shard(numbers(8, 4), P("data", "model"), AUTO)
    viewed = eval(view, {"x": x})
    array = jaxtorch.to_jax(viewed)
    drawn = insight.sharding_of(viewed)
    assert drawn.shape == tuple(viewed.shape)
    assert drawn == insight.sharding_of(array)
    assert drawn.spec == str(jaxtorch.sharding_of(viewed).spec)


# -- transforms of torch.func --------------------------------------------------------------------------------------

TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "grad": lambda f, w: torch.func.grad(lambda w: f(w).sum())(w),
    "vjp": lambda f, w: torch.func.vjp(f, w)[1](torch.ones_like(f(w)))[0],
    "jvp": lambda f, w: torch.func.jvp(f, (w,), (w,))[1],
    "jacrev": lambda f, w: torch.func.jacrev(f)(w),
    "vmap": lambda f, w: torch.func.vmap(f)(w),
    "hessian": lambda f, w: torch.func.hessian(lambda w: f(w).square().sum())(w),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["plain", "with a gradient"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_tensor_outside_of_a_transform(transform: str, gradient: bool) -> None:
    """It has an array, which is sharded as usual; the transform sees the result."""
    run = TRANSFORMS[transform]
    w = numbers(4)
    x = numbers(8, 4)
    expected = run(lambda w: (x * w).sin().sum(0), w)
    on_device = x.to("jax").requires_grad_(gradient)
    result = run(lambda w: (jaxtorch.shard(on_device, "data", FOUR) * w).sin().sum(0), w.to("jax"))
    torch.testing.assert_close(result.cpu(), expected)


def test_a_mesh_of_numbers_of_numpy() -> None:
    assert jaxtorch.mesh(np.int64(4), "data") == FOUR
    assert jaxtorch.mesh([np.int32(4), 2], ["data", "model"]) == AUTO
