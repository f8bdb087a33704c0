"""Models of many kinds trained under drawn strategies, optimizers and ways, against torch on the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from jax.sharding import Mesh
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import jaxtorch
from tests.sharding.on_8_devices._meshes import AUTO, P, Tensor

ALL = jaxtorch.mesh(8, "data")
CUBE = jaxtorch.mesh((2, 2, 2), ("replica", "data", "model"))
THREE = jaxtorch.mesh(3, "data")  # divides few sizes


class Convolutions(nn.Module):
    """With running statistics, and a grouped and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, stride=2, groups=2)
        self.back, self.head = nn.ConvTranspose2d(8, 4, 2), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 2, 2, 4).repeat_interleave(4, 2).repeat_interleave(2, 3)
        x = self.norm(self.first(x)).relu()
        return self.head(self.back(self.grouped(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.cell, self.head = nn.GRUCell(16, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(x.view(-1, 2, 8))
        hidden = x.new_zeros(x.shape[0], 6)
        for step in x.unbind(1):
            hidden = self.cell(step, hidden)
        return self.head(hidden)


class Attention(nn.Module):
    """Checkpointed, with a parameter that is no layer's, and a buffer."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(0.1 * torch.randn(4, 4))
        self.mix, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
        self.up, self.head = nn.Linear(4, 16), nn.Linear(16, 4)
        self.register_buffer("mask", torch.ones(4, 4).triu(1).bool())

    def block(self, x: Tensor) -> Tensor:
        mixed, _ = self.mix(x, x, x, attn_mask=self.mask)
        return self.up(self.norm(x + mixed)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 4, 4) + self.position
        result: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return self.head(result.mean(1))


class Experts(nn.Module):
    """With a count in a buffer that the forward writes."""

    load: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(16, 4), nn.Linear(16, 4)
        self.up = nn.Parameter(0.2 * torch.randn(4, 16, 24))
        self.down = nn.Parameter(0.2 * torch.randn(4, 24, 16))
        self.register_buffer("load", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        mask = torch.zeros(x.shape[0], 4, device=x.device).scatter(1, chosen, weights)
        with torch.no_grad():
            self.load.mul_(0.5).add_(mask.detach().sum(0))
        hidden = torch.einsum("bd,edf->bef", x, self.up).relu()
        return self.head(x + torch.einsum("be,bef,efd->bd", mask, hidden, self.down))


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of low rank."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down = nn.Parameter(0.3 * torch.randn(3, inputs))
        self.up = nn.Parameter(0.3 * torch.randn(outputs, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def adapters() -> nn.Module:
    return nn.Sequential(Adapted(16, 8), nn.GELU(), Adapted(8, 4))


def parametrized() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(16, 8)),
        nn.Tanh(),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
        parametrizations.orthogonal(nn.Linear(8, 4)),
    )


def odd_sizes() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 13), nn.PReLU(), nn.LayerNorm(13), nn.Linear(13, 4))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": Convolutions,
    "recurrent": Recurrent,
    "attention": Attention,
    "experts": Experts,
    "adapters": adapters,
    "parametrized": parametrized,
    "odd sizes": odd_sizes,
}


def by_children(model: nn.Module, mesh: Mesh) -> nn.Module:
    """fsdp of each part, then of the whole."""
    for child in model.children():
        jaxtorch.fsdp(child, mesh, axis="data")
    return jaxtorch.fsdp(model, mesh, axis="data")


def divided(model: nn.Module) -> nn.Module:
    """Each other parameter along its first dimension, the rest along their last."""
    rules = {}
    for i, (name, parameter) in enumerate(model.named_parameters()):
        dimension = 0 if i % 2 else parameter.dim() - 1
        if parameter.shape[dimension] % 2 == 0:
            rules[name] = P(*[None] * dimension, "model")
    return jaxtorch.tensor_parallel(model, AUTO, rules)


STRATEGIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "data parallel": lambda m: jaxtorch.data_parallel(m, ALL),
    "fsdp": lambda m: by_children(m, ALL),
    "fsdp on 3 devices": lambda m: by_children(m, THREE),
    "hybrid": lambda m: by_children(jaxtorch.data_parallel(m, CUBE, axis="replica"), CUBE),
    "tensor and data parallel": lambda m: jaxtorch.data_parallel(divided(m), AUTO),
    "tensor parallel and fsdp": lambda m: by_children(divided(m), AUTO),
}
Parameters = list[nn.Parameter]
# A large eps: Adam would turn the rounding of gradients that are zero into steps.
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, 0.02, eps=1e-3),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, 0.02, eps=1e-3, fused=True),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, 0.02, eps=1e-3, amsgrad=True, foreach=False),
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, eps=1e-2, centered=True),
}


class Case(NamedTuple):
    model: str
    strategy: str
    way: str
    optimizer: str
    batch: int
    parts: int  # whose gradients are accumulated for a step
    clip: bool

    def __str__(self) -> str:
        return ", ".join(map(str, self))


def drawn(seed: int) -> list[Case]:
    """A case for each model and each of two ways."""
    draw = random.Random(seed)
    return [
        Case(
            model,
            draw.choice(list(STRATEGIES)),
            way,
            draw.choice(list(OPTIMIZERS)),
            draw.choice([16, 12, 7]),
            draw.choice([1, 2]),
            draw.random() < 0.5,
        )
        for model in MODELS
        for way in draw.sample(["eager", "pure", "jit"], 2)
    ]


def trained(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    """Train for three steps, with a schedule."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = OPTIMIZERS[case.optimizer](parameters)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    device = parameters[0].device
    call = jaxtorch.pure(model) if case.way == "pure" and device.type == "jax" else model

    def step(xs: list[Tensor], ys: list[Tensor]) -> None:
        optimizer.zero_grad()
        for x, y in zip(xs, ys, strict=True):
            (nn.functional.cross_entropy(call(x), y) / case.parts).backward()
        if case.clip:
            nn.utils.clip_grad_norm_(parameters, 0.2)
        optimizer.step()

    run = jaxtorch.jit(step) if case.way == "jit" and device.type == "jax" else step
    generator = torch.Generator("cpu").manual_seed(1)
    for _ in range(3):
        xs = [torch.randn(case.batch, 16, generator=generator) for _ in range(case.parts)]
        ys = [torch.randint(4, (case.batch,), generator=generator) for _ in range(case.parts)]
        run([x.to(device) for x in xs], [y.to(device) for y in ys])
        schedule.step()
    return optimizer


@pytest.mark.parametrize("case", drawn(seed=0), ids=str)
def test_training(case: Case) -> None:
    torch.manual_seed(0)
    on_cpu = MODELS[case.model]()
    torch.manual_seed(0)
    model = STRATEGIES[case.strategy](MODELS[case.model]())
    start = {name: value.clone() for name, value in on_cpu.state_dict().items()}
    before = {p: jaxtorch.sharding_of(p) for p in model.parameters()}

    trained(on_cpu, case)
    optimizer = trained(model, case)

    values = {name: value.cpu() for name, value in model.state_dict().items()}
    torch.testing.assert_close(values, dict(on_cpu.state_dict()), rtol=1e-3, atol=1e-4)
    assert any(not torch.equal(start[name], value) for name, value in values.items())
    for parameter, sharding in before.items():
        state = [
            t
            for t in optimizer.state.get(parameter, {}).values()
            if isinstance(t, Tensor) and t.shape == parameter.shape
        ]
        present = [parameter, *([] if parameter.grad is None else [parameter.grad]), *state]
        assert {jaxtorch.sharding_of(t) for t in present} == {sharding}
