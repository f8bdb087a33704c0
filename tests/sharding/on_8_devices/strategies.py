"""Training under `data_parallel`, `fsdp`, `tensor_parallel` and their combinations equals training on one device."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable

import jax
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.parallel.batches import BatchHook
from tests.sharding.on_8_devices._meshes import AUTO, EXPLICIT, P, Tensor, numbers, spec_of

ALL = jaxtorch.mesh(8, "data")


class Block(nn.Module):
    """Of a transformer."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.q, self.k, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (f(h).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class GPT(nn.Module):
    """A transformer with tied embeddings."""

    def __init__(self, scan: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.scan = scan

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.scan:
            x = jaxtorch.scan_layers(self.blocks, x)
        else:
            for block in self.blocks:
                x = block(x)
        return self.head(x)


RULES = {
    "*.[qkv].weight": P("model", None),
    "*.[qkv].bias": P("model"),
    "*.out.weight": P(None, "model"),
    "*.up.weight": P("model", None),
    "*.up.bias": P("model"),
    "*.down.weight": P(None, "model"),
}


def _fsdp_by_blocks(model: GPT) -> None:
    for block in model.blocks:
        jaxtorch.fsdp(block, ALL)
    jaxtorch.fsdp(model, ALL)


def _tensor_and_data_parallel(model: GPT) -> None:
    jaxtorch.tensor_parallel(model, AUTO, RULES)
    jaxtorch.data_parallel(model, AUTO, axis="data")


def _tensor_parallel_and_fsdp(model: GPT) -> None:
    jaxtorch.tensor_parallel(model, EXPLICIT, RULES)
    jaxtorch.fsdp(model, EXPLICIT)


# A change of the model, and the sharding of the weights of `up` after it.
STRATEGIES: dict[str, tuple[Callable[[GPT], object], P]] = {
    "data parallel": (lambda m: jaxtorch.data_parallel(m, ALL), P()),
    "fsdp": (_fsdp_by_blocks, P("data")),
    "tensor parallel": (
        lambda m: jaxtorch.tensor_parallel(m, jaxtorch.mesh(2, "model"), RULES),
        P("model"),
    ),
    "tensor and data parallel": (_tensor_and_data_parallel, P("model")),
    "tensor parallel and fsdp": (_tensor_parallel_and_fsdp, P("model", "data")),
}
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02),
    "AdamW, foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02, foreach=True),
    "AdamW, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=0.02, fused=True),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
}
IDS = torch.arange(64).reshape(8, 8) * 7 % 13


def trained(strategy: str | None, way: str, optimizer: str, late: bool = False) -> list[float]:
    """The losses of five steps."""
    model = GPT(scan=way == "scan")
    place, spec = STRATEGIES[strategy] if strategy else (lambda m: m.to("jax"), None)
    if late:
        model.to("jax")
    else:
        place(model)
    step = OPTIMIZERS[optimizer](model)
    ids = IDS.to("jax")
    call: Callable[[Tensor], Tensor] = model
    if way in ("pure", "scan"):
        call = jaxtorch.pure(model)
    elif way == "compile":
        call = torch.compile(model, backend="jax", fullgraph=True)

    def train() -> Tensor:
        step.zero_grad()
        loss = nn.functional.cross_entropy(call(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        return loss

    run = jaxtorch.jit(train) if way == "jit" else train
    losses: list[float] = []
    for i in range(5):
        if late and i == 2:
            place(model)
        losses.append(run().item())
    up = model.blocks[1].up.weight
    if spec is not None:
        state = [t for t in step.state[up].values() if t.dim()]
        assert {spec_of(t) for t in (up, up.grad, *state)} == {spec}
        assert model.head.weight is model.embed.weight
    return losses


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    """The losses on one device."""
    losses = {name: trained(None, "eager", name) for name in ("AdamW", "SGD")}
    assert (
        losses["AdamW"][0] > 1.5 * losses["AdamW"][-1]
    )  # so that a step that does nothing is seen
    return losses


@pytest.mark.parametrize(
    ("strategy", "way", "optimizer"),
    [
        *((strategy, "eager", "AdamW") for strategy in STRATEGIES),
        ("tensor parallel and fsdp", "jit", "AdamW"),
        *(("tensor parallel and fsdp", way, "AdamW") for way in ("pure", "compile", "scan")),
        *(("fsdp", way, "AdamW") for way in ("pure", "compile", "scan")),
        *(("fsdp", "eager", name) for name in ("AdamW, foreach", "AdamW, fused", "SGD")),
    ],
)
def test_training(
    strategy: str, way: str, optimizer: str, expected: dict[str, list[float]]
) -> None:
    losses = trained(strategy, way, optimizer)
    assert losses == pytest.approx(expected[optimizer.split(",")[0]], rel=1e-4)


_COLLECTIVE = re.compile(
    r"= (\([^)]*\)|\S+) (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def _shape(text: str) -> tuple[int, ...]:
    """The sorted sizes of an array, as XLA writes it: `f32[8,16]{1,0}`."""
    return tuple(sorted(map(int, re.findall(r"\d+", text.partition("[")[2].partition("]")[0]))))


@pytest.mark.parametrize(
    ("strategy", "sums"),
    [
        ("data parallel", 2),  # the loss, and all gradients at once
        ("fsdp", 2),
        ("tensor and data parallel", 2 + 2 * 4),  # two in a block, forward and backward
    ],
)
def test_collectives_of_a_step(strategy: str, sums: int, expected: dict[str, list[float]]) -> None:
    """No activation is gathered, and no parameter but where it is divided."""
    model = GPT()
    STRATEGIES[strategy][0](model)
    mesh = jaxtorch.sharding_of(model.embed.weight).mesh
    ids = jaxtorch.shard(IDS, "data", mesh)
    optimizer = OPTIMIZERS["SGD"](model)

    @jaxtorch.jit
    def step(ids: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        return loss

    assert step(ids).item() == pytest.approx(expected["SGD"][0], rel=1e-4)
    found = _COLLECTIVE.findall(step.lower(ids).compile().as_text())
    assert sum(kind == "all-reduce" for _, kind in found) == sums
    gathered = {_shape(text) for text, kind in found if kind == "all-gather"}
    sizes = {tuple(sorted(p.shape)) for p in model.parameters()}
    assert gathered <= (sizes if strategy == "fsdp" else set())
    assert {kind for _, kind in found} <= {"all-reduce", "all-gather"}


def test_fsdp_divides_the_memory() -> None:
    """Of parameters, gradients and the optimizer's state, after an eager step."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(3)))
    jaxtorch.fsdp(model, ALL)
    optimizer = torch.optim.AdamW(model.parameters())
    model(numbers(8, 32).to("jax")).square().mean().backward()

    def share(tensors: list[Tensor]) -> float:
        arrays = [jaxtorch.to_jax(t.detach()) for t in tensors]
        here = sum(a.addressable_shards[0].data.nbytes for a in arrays)
        return here / sum(a.nbytes for a in arrays)

    assert share([p.grad for p in model.parameters() if p.grad is not None]) == 1 / 8
    optimizer.step()
    moments = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    assert share([*model.parameters(), *moments]) == 1 / 8


@pytest.mark.parametrize("way", ["eager", "jit"])
def test_a_strategy_in_the_middle_of_training(way: str, expected: dict[str, list[float]]) -> None:
    """An optimizer that was made before, and has state, goes on."""
    assert trained("fsdp", way, "AdamW", late=True) == pytest.approx(expected["AdamW"], rel=1e-4)


def test_another_mesh_between_steps() -> None:
    """The state of the optimizer follows."""
    model, ids = nn.Linear(8, 8), numbers(8, 8).to("jax")
    optimizer = torch.optim.AdamW(model.parameters())
    for place, spec in (
        (lambda: jaxtorch.data_parallel(model, jaxtorch.mesh(4, "data")), P()),
        (lambda: jaxtorch.fsdp(model, ALL), P("data")),
        (lambda: jaxtorch.fsdp(model, jaxtorch.mesh(2, "rows")), P("rows")),
    ):
        place()
        model(ids).square().sum().backward()
        assert spec_of(model.weight.grad) == spec
        optimizer.step()
        assert {spec_of(optimizer.state[model.weight][k]) for k in ("exp_avg", "exp_avg_sq")} == {
            spec
        }


def test_transforms_of_a_placed_module() -> None:
    """torch's transforms see through the hook: gradients of each sample."""
    model, x = nn.Linear(4, 2), numbers(8, 4)

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, row).square().sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = each({k: v.detach() for k, v in model.named_parameters()}, x)["weight"]
    jaxtorch.data_parallel(model, ALL)
    result = each({k: v.detach() for k, v in model.named_parameters()}, x.to("jax"))["weight"]
    torch.testing.assert_close(result.cpu(), expected)


@pytest.mark.parametrize("place", [jaxtorch.data_parallel, jaxtorch.fsdp])
def test_the_gradient_of_all_parameters_by_torch_func(
    place: Callable[..., nn.Module],
) -> None:
    model, x = nn.Linear(4, 8), numbers(8, 4)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, x).square().sum()

    gradient = torch.func.grad(loss)
    expected = gradient({k: v.detach() for k, v in model.named_parameters()}, x)
    place(model, ALL)
    result = gradient({k: v.detach() for k, v in model.named_parameters()}, x.to("jax"))
    for name, value in expected.items():
        torch.testing.assert_close(result[name].cpu(), value)


@pytest.mark.parametrize("place", [jaxtorch.data_parallel, jaxtorch.fsdp])
def test_a_batch_by_vmap(place: Callable[..., nn.Module]) -> None:
    """In captured code the parameters are gathered in the transform, which does not contain them."""
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8)), numbers(8, 4)
    expected = torch.vmap(model)(x)
    place(model, ALL)
    for run in (lambda x: torch.vmap(model)(x), jaxtorch.pure(lambda x: torch.vmap(model)(x))):
        torch.testing.assert_close(run(x.to("jax")).cpu(), expected)


# -- how parameters are cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((8, 16), P(None, "data")),
        ((16, 8), P("data")),
        ((8, 8), P("data")),
        ((8, 30), P("data")),
        ((3, 8, 5), P(None, "data")),
        ((6, 10), P()),
        ((), P()),
        ((7,), P()),
        ((0, 8), P(None, "data")),
    ],
)
def test_fsdp_cuts_the_largest_dimension_that_divides(shape: tuple[int, ...], spec: P) -> None:
    module = nn.Module()
    module.register_parameter("w", nn.Parameter(torch.zeros(shape)))
    module.register_buffer("b", torch.zeros(shape, dtype=torch.int64))
    jaxtorch.fsdp(module, ALL)
    assert (spec_of(module.w), spec_of(module.b)) == (spec, P())


def test_strategies_compose() -> None:
    layer = nn.Linear(16, 8)
    jaxtorch.shard(layer, {"weight": P("model")}, AUTO)
    for _ in range(2):  # the second call changes nothing
        jaxtorch.fsdp(layer, AUTO)
        assert (spec_of(layer.weight), spec_of(layer.bias)) == (P("model", "data"), P("data"))
    jaxtorch.fsdp(layer, AUTO, axis="model")
    assert (spec_of(layer.weight), spec_of(layer.bias)) == (
        P("model", "data"),
        P(("data", "model")),
    )
    jaxtorch.data_parallel(layer, AUTO)
    assert (spec_of(layer.weight), spec_of(layer.bias)) == (P("model"), P("model"))


def test_without_a_mesh() -> None:
    """All devices, or the mesh of the context."""
    assert jaxtorch.sharding_of(jaxtorch.fsdp(nn.Linear(8, 8)).weight).num_devices == 8
    with jax.set_mesh(AUTO):
        layer = jaxtorch.tensor_parallel(nn.Linear(8, 8), None, {"weight": "model"})
        jaxtorch.data_parallel(layer)
    assert spec_of(layer.weight) == P("model")


# -- batches -------------------------------------------------------------------------------------------------------


class Inputs(nn.Module):
    """Returns its inputs."""

    def forward(self, *args: object, **kwargs: object) -> object:
        return args, kwargs


def test_inputs_are_spread_along_the_batch() -> None:
    module = jaxtorch.data_parallel(Inputs(), AUTO)
    x = numbers(8, 4).to("jax")
    (first, (second, rest), cpu), named = module(
        x,
        (x.T, numbers(6).to("jax")),
        numbers(8),
        mask=x[0],
        lying=jaxtorch.shard(x, "model", AUTO),
    )
    specs = [spec_of(t) for t in (first, second, rest, named["mask"], named["lying"])]
    assert specs == [P("data"), P("data"), P(), P("data"), P("model")]
    assert cpu.device.type == "cpu"
    ((column,), _) = jaxtorch.data_parallel(Inputs(), AUTO, batch_dimension=1)(x)
    assert spec_of(column) == P(None, "data")


def _batch_hooks(module: nn.Module) -> list[BatchHook]:
    return [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, BatchHook)]


def test_the_hook_is_seen_and_removed() -> None:
    module = Inputs()
    jaxtorch.data_parallel(module, AUTO)
    jaxtorch.fsdp(module, AUTO)
    jaxtorch.data_parallel(module, AUTO, axis="model")
    (hook,) = _batch_hooks(module)
    assert repr(hook) == "BatchHook(axes=('data', 'model'), dimension=0)"
    x = numbers(8, 4).to("jax")
    ((both,), _) = module(x)
    assert spec_of(both) == P(("data", "model"))
    jaxtorch.data_parallel(module, ALL)  # another mesh
    ((other,), _) = module(x)
    assert spec_of(other) == P("data")
    jaxtorch.data_parallel(module, ALL, shard_batch=False)
    assert not _batch_hooks(module)
    ((same,), _) = module(x)
    assert same is x


def test_a_smaller_last_batch() -> None:
    model = nn.Linear(4, 2)
    x = numbers(5, 4)
    expected = model(x).detach()
    jaxtorch.data_parallel(model, ALL)
    for call in (model, jaxtorch.pure(model)):
        torch.testing.assert_close(call(x.to("jax")).detach().cpu(), expected)
        torch.testing.assert_close(call(x[:0].to("jax")).detach().cpu(), expected[:0])


def test_copies_and_files_of_a_module() -> None:
    model = jaxtorch.fsdp(nn.Linear(8, 8), ALL)
    x = numbers(8, 8).to("jax")
    expected = model(x)
    copied = copy.deepcopy(model)
    jaxtorch.fsdp(copied, AUTO)
    torch.testing.assert_close(copied(x).cpu(), expected.cpu())
    assert [hook.mesh for hook in _batch_hooks(model)] == [ALL]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded(x).cpu(), expected.cpu())


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("way", ["eager", "pure", "jit", "compile"])
def test_batch_norm_has_the_statistics_of_the_whole_batch(way: str, devices: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    expected = copy.deepcopy(model)
    jaxtorch.fsdp(model, jaxtorch.mesh(devices, "data"))
    ways: dict[str, Callable[[nn.Module], Callable[[Tensor], Tensor]]] = {
        "eager": lambda m: m,
        "pure": jaxtorch.pure,
        "jit": jaxtorch.jit,
        "compile": lambda m: torch.compile(m, backend="jax"),
    }
    call = ways[way](model)
    for seed in range(2):
        x = numbers(16, 4, seed=seed)
        y = call(x.to("jax"))
        torch.testing.assert_close(y.detach().cpu(), expected(x).detach(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(model[1].buffers(), expected[1].buffers(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
