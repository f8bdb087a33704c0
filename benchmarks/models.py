"""Whole models, forward and backward: a small GPT compared with JAX and torch, and a decoder of 100 layers."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from torch import nn

import jaxtorch
from jaxtorch.programs import stacking

from .capture import finish
from .harness import Row, compare

Tensor = torch.Tensor
DEPTH = 100


class Block(nn.Module):
    """A layer of GPT-2, without dropout."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A GPT that returns its loss, the cross entropy of the next tokens."""

    def __init__(self, depth: int, width: int, heads: int, length: int, words: int = 256):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions.weight
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def jax_gpt(p: dict[str, jax.Array], x: jax.Array, y: jax.Array, depth: int, heads: int) -> Any:
    """The same model in plain JAX."""

    def norm(name: str, h: jax.Array) -> jax.Array:
        h = h - h.mean(-1, keepdims=True)
        h = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-5)
        return h * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(name: str, h: jax.Array) -> jax.Array:
        return h @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    h = p["tokens.weight"][x] + p["positions.weight"]
    b, t, w = h.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    for i in range(depth):
        name = f"blocks.{i}"
        qkv = linear(f"{name}.qkv", norm(f"{name}.norm1", h)).reshape(b, t, 3, heads, -1)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (w // heads) ** -0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        h = h + linear(f"{name}.out", jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, t, w))
        up = jax.nn.gelu(linear(f"{name}.up", norm(f"{name}.norm2", h)), approximate=False)
        h = h + linear(f"{name}.down", up)
    logits = jax.nn.log_softmax(norm("norm", h) @ p["head.weight"].T)
    return -jnp.take_along_axis(logits, y[..., None], -1).mean()


def gpts() -> Iterator[Row | str]:
    """Loss and gradients of a GPT of 12 layers at two sizes."""
    yield from _gpt("tiny", GPT(12, 32, 2, 8), 1, calls=20, limit=None)
    yield from _gpt("256 wide", GPT(12, 256, 8, 128), 2, calls=1, limit=1.15)
    yield from _torchax()


def _gpt(name: str, model: GPT, batch: int, calls: int, limit: float | None) -> Iterator[Row | str]:
    x, y = torch.randint(256, (2, batch, len(model.positions.weight)))
    ours = copy.deepcopy(model).to("jax")
    theirs = _jax_step(model, x, y)
    contestants: dict[str, Callable[[], Any]] = {
        "pure": step_of(ours, jaxtorch.pure(ours), x.to("jax"), y.to("jax")),
        "JAX": theirs,
        "eager": step_of(ours, ours, x.to("jax"), y.to("jax")),
        "torch CPU": step_of(model, model, x, y),
    }
    _, expected = theirs()
    ours(x.to("jax"), y.to("jax")).backward()
    torch.testing.assert_close(
        ours.head.weight.grad.cpu(), torch.tensor(expected["head.weight"].tolist())
    )
    inductor = _inductor(model, x, y)
    if isinstance(inductor, str):
        yield inductor
    else:
        contestants["inductor"] = inductor
    yield compare(f"GPT, {name}", contestants, finish, calls, 9, limit, "JAX")


def _jax_step(model: GPT, x: Tensor, y: Tensor) -> Callable[[], Any]:
    parameters = {k: jnp.array(v.detach().numpy()) for k, v in model.named_parameters()}
    a, b = jnp.array(x.numpy()), jnp.array(y.numpy())
    depth, heads = len(model.blocks), model.blocks[0].heads
    run = jax.jit(jax.value_and_grad(lambda p, x, y: jax_gpt(p, x, y, depth, heads)))
    return lambda: jax.block_until_ready(run(parameters, a, b))


def step_of(model: nn.Module, run: Any, *args: Tensor) -> Callable[[], None]:
    """A step that drops the old gradients and runs forward and backward. `finish` waits for the new gradients."""
    parameters = list(model.parameters())

    def step() -> None:
        for p in parameters:
            p.grad = None
        run(*args).backward()

    return step


def _inductor(model: nn.Module, *args: Tensor) -> Callable[[], None] | str:
    """The step of `torch.compile`, or the reason why it does not run."""
    step = step_of(model, torch.compile(model), *args)
    try:
        step()
    except Exception as error:
        return f"torch.compile does not run here: {str(error).strip().splitlines()[0]}"
    return step


def _torchax() -> Iterator[str]:
    try:
        import torchax  # noqa: F401  # tests whether it is installed
    except ImportError:
        yield "torchax is not installed"
    else:
        yield "torchax is installed: it cannot share a process with the device, so it is not timed here"


# -- a deep decoder ---------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """Normalization by the root mean square."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    """A layer of Llama: rotary positions, grouped queries, a gated MLP."""

    def __init__(self, width: int = 32, heads: int = 4, groups: int = 2):
        super().__init__()
        self.heads, self.groups = heads, groups
        size = width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, w = x.shape
        h = self.norm1(x)
        q = rotate(self.q(h).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(b, t, self.groups, -1).transpose(1, 2), cos, sin)
        v = self.v(h).view(b, t, self.groups, -1).transpose(1, 2)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, w))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Decoder(nn.Module):
    """A stack of layers, run by a Python loop or by `scan_layers`."""

    def __init__(self, depth: int, scanned: bool, length: int = 8):
        super().__init__()
        self.scanned = scanned
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        angles = torch.outer(torch.arange(length), 10000 ** -torch.linspace(0, 1, 4))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        if self.scanned:
            return jaxtorch.scan_layers(self.layers, x, self.cos, self.sin).square().mean()
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return x.square().mean()


def deep() -> Iterator[Row]:
    """The time to compile a deep decoder, and the host time of one of its steps."""
    torch.manual_seed(0)
    x = torch.randn(1, 8, 32, device="jax")
    seconds = {depth: _compile_times(depth, x) for depth in (10, 50, DEPTH)}
    for depth, own in seconds.items():
        yield Row(f"trace + compile, {depth} layers", {"scan_layers": own})
    loop, scanned = (Decoder(DEPTH, way).to("jax") for way in (False, True))
    scanned.load_state_dict(loop.state_dict())
    eager = step_of(loop, loop, x)
    one = step_of(scanned, jaxtorch.pure(scanned), x)
    name = f"host, {DEPTH} layers"
    yield _host_time(name, {"pure, scan_layers": one, "eager": eager})
    unrolled, captured = _first(loop, x)  # minutes
    times = {"scan_layers": seconds[DEPTH], "unrolled": unrolled}
    yield Row(f"trace + compile, {DEPTH} layers", times, 0.1, "unrolled")
    yield _host_time(name, {"pure, unrolled": step_of(loop, captured, x), "eager": eager})


def _compile_times(depth: int, x: Tensor) -> float:
    return statistics.median(_first(Decoder(depth, True).to("jax"), x)[0] for _ in range(3))


def _first(model: nn.Module, x: Tensor) -> tuple[float, Any]:
    """The CPU seconds of the first forward and backward pass, and the captured model."""
    x.square().mean()
    stacking.forget()
    captured = jaxtorch.pure(model)
    started = time.process_time()
    captured(x).backward()
    finish()
    return time.process_time() - started, captured


def _host_time(name: str, runs: dict[str, Callable[[], None]], rounds: int = 15) -> Row:
    """The time until a step returns. The wait for the device between the runs is not part of it."""
    times: dict[str, list[float]] = {key: [] for key in runs}
    for i in range(rounds + 2):
        for key, run in runs.items():
            started = time.perf_counter()
            run()
            seconds = time.perf_counter() - started
            finish()
            if i > 1:
                times[key].append(seconds)
    return Row(name, {k: statistics.median(v) for k, v in times.items()}, 0.067, "eager")


def rows() -> Iterator[Row | str]:
    """One row per comparison."""
    yield from gpts()
    yield from deep()
