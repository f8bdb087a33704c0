"""The training steps that `benchmarks.scale` compiles: transformers' Llama on the meta device, and the same in JAX.

Both keep parameters and AdamW's state in float32, compute in bfloat16, recompute each layer in the backward pass, and
divide parameters, state and batch among all chips (fully sharded data parallelism, FSDP).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
from jax import export
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P
from torch.func import functional_call

import jaxtorch
from jaxtorch.capture.lowering import Executable
from jaxtorch.capture.tpu import Request, shared


@dataclass(frozen=True)
class Case:
    """A model, its batch and the chips that it trains on.

    Attributes:
        target: the chips, such as "v5e:16x16".
        chips: their number.
        batch, length: the number of sequences in a batch, and of tokens in a sequence.
        vocabulary, width, hidden, layers, heads, groups: the sizes of the Llama; `groups` are its heads of keys.
    """

    target: str
    chips: int
    batch: int
    length: int
    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    groups: int


CASES = {
    "0.03B": Case("v5e:2x2", 4, 16, 512, 32000, 512, 2048, 4, 8, 8),
    "1.1B": Case("v5e:4x4", 16, 16, 2048, 32000, 2048, 5632, 22, 32, 4),
    "7B": Case("v5e:16x16", 256, 256, 2048, 32000, 4096, 11008, 32, 32, 32),
    "70B": Case("v5p:8x8x8", 512, 512, 4096, 32000, 8192, 28672, 80, 64, 8),
}


def fully_sharded(chips: int, name: str, shape: tuple[int, ...]) -> P:
    """The sharding of an input: along its largest dimension that divides.

    The batch is divided along its first dimension. The embedding is divided along its width: each chip then looks up
    its part of all rows, and XLA exchanges the parts. Divided along the vocabulary, each chip would need the whole
    batch's rows.
    """
    sizes = [n if n % chips == 0 else 0 for n in shape]
    if name == "ids":
        return P("data")
    if "embed" in name:
        return P(None, "data")
    if len(shape) < 2 or not any(sizes):
        return P()
    best = sizes.index(max(sizes))
    return P(*("data" if d == best else None for d in range(len(shape))))


def torch_step(case: Case) -> jaxtorch.capture.lowering.Lowered:
    """A training step of transformers' Llama, lowered for the chips without memory for a weight."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        intermediate_size=case.hidden,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.groups,
        max_position_embeddings=case.length,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    layers = model.model.layers
    model.model.layers = jaxtorch.stack_layers(layers, remat=True, ignore=["layer_idx"])
    for module in (model.model.layers.layer, model.model.norm, model.lm_head):
        module.register_forward_pre_hook(_spread)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    @jaxtorch.jit
    def step(ids: torch.Tensor) -> torch.Tensor:
        weights = {name: p.to(torch.bfloat16) for name, p in model.named_parameters()}
        inputs = {"input_ids": ids, "labels": ids, "use_cache": False}
        loss: torch.Tensor = functional_call(model, weights, kwargs=inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(case.batch, case.length, dtype=torch.int64, device="meta")
    rules = functools.partial(fully_sharded, case.chips)
    return step.lower(ids, target=case.target, mesh={"data": case.chips}, shardings=rules)


def _spread(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A hook before each layer: the batch stays divided, so XLA gathers weights rather than activations."""
    return tuple(jaxtorch.with_sharding_constraint(x, P("data")) for x in args)


# -- the same in JAX -------------------------------------------------------------------------------


def _parameters(case: Case) -> dict[str, Any]:
    """Shapes of the parameters; those of all layers are stacked."""
    n, w = case.layers, case.width
    keys = w // case.heads * case.groups
    shapes = {
        "embedding": (case.vocabulary, w),
        "layers": {
            "q": (n, w, w), "k": (n, keys, w), "v": (n, keys, w), "o": (n, w, w),
            "gate": (n, case.hidden, w), "up": (n, case.hidden, w), "down": (n, w, case.hidden),
            "before": (n, w), "after": (n, w),
        },
        "norm": (w,),
        "head": (case.vocabulary, w),
    }  # fmt: skip
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=lambda s: type(s) is tuple
    )


def _norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return weight * wide.astype(x.dtype)


def _rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    half = x.shape[-1] // 2
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cos[:, None] + turned * sin[:, None]


def _layer(case: Case, x: jax.Array, w: dict[str, jax.Array], cos: Any, sin: Any) -> jax.Array:
    size = case.width // case.heads
    y = _norm(x, w["before"])
    q, k, v = ((y @ w[name].T).reshape(*y.shape[:2], -1, size) for name in "qkv")
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + y.reshape(x.shape) @ w["o"].T
    y = _norm(x, w["after"])
    return x + (jax.nn.silu(y @ w["gate"].T) * (y @ w["up"].T)) @ w["down"].T


def _loss(case: Case, weights: dict[str, Any], ids: jax.Array) -> jax.Array:
    weights = jax.tree.map(lambda a: a.astype(jnp.bfloat16), weights)
    size = case.width // case.heads
    x = weights["embedding"][ids]
    angles = jnp.arange(case.length)[:, None] / 10000 ** (jnp.arange(0, size, 2) / size)
    angles = jnp.concatenate([angles, angles], -1)
    cos, sin = (f(angles).astype(jnp.bfloat16) for f in (jnp.cos, jnp.sin))

    def body(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        return _layer(case, spread(x), w, cos, sin), None

    batch = NamedSharding(AbstractMesh((case.chips,), ("data",)), P("data"))
    spread = functools.partial(jax.lax.with_sharding_constraint, shardings=batch)
    x, _ = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), x, weights["layers"])
    logits = spread(_norm(spread(x), weights["norm"])) @ weights["head"].T
    labels = jnp.pad(ids, ((0, 0), (0, 1)))[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)
    valid = jnp.arange(case.length) < case.length - 1
    return jnp.sum(losses * valid) / (case.batch * (case.length - 1))


def jax_step(case: Case) -> Request:
    """The same training step in JAX, to be compiled for the same chips."""
    mesh = AbstractMesh((case.chips,), ("data",))
    optimizer = optax.adamw(1e-4, weight_decay=0.01)

    def step(weights: Any, state: Any, ids: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(functools.partial(_loss, case))(weights, ids)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    def placed(name: str, aval: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = fully_sharded(case.chips, name, aval.shape)
        return aval.update(sharding=NamedSharding(mesh, spec))

    weights = _parameters(case)
    state = jax.eval_shape(optimizer.init, weights)
    named, structure = jax.tree_util.tree_flatten_with_path((weights, state))
    leaves = [placed(jax.tree_util.keystr(path), leaf) for path, leaf in named]
    ids = jax.ShapeDtypeStruct((case.batch, case.length), jnp.int32)

    def flat(*arrays: jax.Array) -> list[jax.Array]:  # trees of optax cannot be exported
        return jax.tree.leaves(step(*jax.tree.unflatten(structure, arrays[:-1]), arrays[-1]))

    donated = range(len(leaves))
    out = [*(leaf.sharding for leaf in leaves), None]
    jitted = jax.jit(flat, donate_argnums=tuple(donated), out_shardings=out)
    exported = export.export(jitted, platforms=("tpu",))(*leaves, placed("ids", ids))
    mesh_axes = {"data": case.chips}
    return Request(bytes(exported.serialize()), case.target, list(donated), mesh_axes)


def compiled(request: Request) -> Executable:
    """A program compiled in the compiler's process."""
    figures, serialized = shared.compile(request)
    return Executable(figures, serialized, target=request.target, mesh=request.mesh)
