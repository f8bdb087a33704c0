"""Whole models, as in wrap-torch2jax's examples: weights in JAX, the model in torch, one device or several."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import jax
import numpy as np
import optax
import pytest
import torch
from torch import nn
from torch.func import functional_call

from jaxtorch import torch2jax_with_vjp, tree_j2t, tree_t2j

from ...models.networks import ResidualNetwork


def close(ours: Any, theirs: Any) -> None:
    """The same tree of arrays, up to rounding."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, theirs)


def test_bert_with_its_weights_in_jax() -> None:
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=50, intermediate_size=32, **sizes)
    model = transformers.BertModel(config).eval()
    params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    text = {
        "input_ids": torch.randint(0, 50, (3, 7)),
        "attention_mask": torch.ones(3, 7, dtype=torch.int64).tril(4),
    }

    def forward(params: Any, buffers: Any, text: Any) -> torch.Tensor:
        return functional_call(model, (params, buffers), args=(), kwargs=text).pooler_output

    jax_forward = jax.jit(torch2jax_with_vjp(forward, params, buffers, text))
    others = tree_t2j((buffers, text))
    gradient = jax.jit(jax.grad(lambda params: jax_forward(params, *others).sum()))
    expected = torch.func.grad(lambda params: forward(params, buffers, text).sum())(params)
    with torch.no_grad():
        close(jax_forward(tree_t2j(params), *others), tree_t2j(forward(params, buffers, text)))
    close(gradient(tree_t2j(params)), tree_t2j(tree_j2t(expected)))


@pytest.mark.parametrize("x64", [False, True])
def test_residual_network_trained_by_optax(x64: bool) -> None:
    """Two functions of torch in one JAX program, with labels of torch's integers, and without float64 in JAX too."""
    with jax.enable_x64(x64):
        torch.manual_seed(0)
        model = ResidualNetwork().eval()
        params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        images, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))

        def forward(params: Any, buffers: Any, images: torch.Tensor) -> torch.Tensor:
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
            return functional_call(model, (params, buffers), args=images)

        jax_forward = torch2jax_with_vjp(forward, params, buffers, images, nondiff_argnums=(1, 2))
        cross_entropy = torch2jax_with_vjp(nn.CrossEntropyLoss(), torch.randn(4, 5), labels)
        own, x, y = tree_t2j((buffers, images, labels))

        def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
            return cross_entropy(jax_forward(params, own, x), y)

        gradient = jax.jit(jax.grad(loss))
        expected = torch.func.grad(
            lambda params: nn.functional.cross_entropy(forward(params, buffers, images), labels)
        )(params)
        weights = tree_t2j(params)
        close(gradient(weights, x, y), tree_t2j(expected))

        optimizer = optax.sgd(0.1)
        twin = torch.optim.SGD(model.parameters(), lr=0.1)
        state = optimizer.init(weights)
        for size in (4, 4, 3):  # the last batch of an epoch is smaller
            updates, state = optimizer.update(gradient(weights, x[:size], y[:size]), state)
            weights = optax.apply_updates(weights, updates)
            twin.zero_grad()
            nn.functional.cross_entropy(model(images[:size]), labels[:size]).backward()
            twin.step()
        close(weights, tree_t2j({name: p.detach() for name, p in model.named_parameters()}))


def test_data_parallel_over_four_devices() -> None:
    """By `shard_map`: each device calls torch on its part of the batch, and gradients are summed over the devices."""
    program = """
        import copy
        import jax
        import jax.numpy as jnp
        import numpy as np
        import torch
        from jax.sharding import NamedSharding, PartitionSpec as P
        from torch import nn
        from jaxtorch import torch2jax, torch2jax_with_vjp, tree_t2j

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 4))
        params = {name: p.detach().clone() for name, p in model.named_parameters()}
        calls = []

        def call_model(x, params):
            calls.append(tuple(x.shape))
            # functional_call puts the weights into the model, which several devices' threads would share
            return torch.func.functional_call(copy.deepcopy(model), params, x)

        mesh = jax.make_mesh((4,), ("x",))
        batch, everywhere = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P())
        x = jax.device_put(jnp.linspace(-1, 1, 8 * 32).reshape(8, 32), batch)
        weights = jax.device_put(tree_t2j(params), everywhere)
        specs = (batch.spec, jax.tree.map(lambda _: P(), weights))

        def twin(x, p):
            return jax.nn.silu(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]

        def close(ours, theirs):
            both = jax.tree.leaves(ours), jax.tree.leaves(theirs)
            for a, b in zip(*both, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

        def on_each(x, params):
            return torch2jax_with_vjp(call_model, x, params, output_shapes=x[:, :4])(x, params)

        once = torch2jax(call_model)
        for function in (on_each, once):
            for checked in (False, True):
                sharded = jax.shard_map(
                    function, mesh=mesh, in_specs=specs, out_specs=batch.spec, check_vma=checked
                )
                calls.clear()
                y = jax.jit(sharded)(x, weights)
                close(y, twin(x, weights))
                assert y.sharding.is_equivalent_to(batch, 2)
                assert set(calls) == {(2, 32)} and len(calls) >= 4
                total = lambda f: jax.jit(jax.value_and_grad(lambda p, x: (f(x, p) ** 2).sum()))
                close(total(sharded)(weights, x), total(twin)(weights, x))
                close(jax.jit(jax.vmap(sharded, (None, 0)))(x, jax.tree.map(lambda w: w[None], weights)),
                      twin(x, weights)[None])
        close(jax.jit(once)(x, weights), twin(x, weights))  # without shard_map JAX gathers the batch
        close(once(x, weights), twin(x, weights))

        # one device's part by out_specs, the model shared by the devices' threads under a lock
        def shared_model(x, params):
            calls.append(tuple(x.shape))
            return torch.func.functional_call(model, params, x)

        for shapes in (None, jax.ShapeDtypeStruct((8, 4), jnp.float32)):
            forward = torch2jax(
                shared_model, x, weights, output_shapes=shapes, out_specs=P("x"), lock=True
            )
            with jax.set_mesh(mesh):
                calls.clear()
                y = jax.jit(forward)(x, weights)
                assert y.sharding.is_equivalent_to(batch, 2) and set(calls) == {(2, 32)}
                close(y, twin(x, weights))
                close(total(forward)(weights, x), total(twin)(weights, x))
    """
    four = {"JAX_NUM_CPU_DEVICES": "4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, **four},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
