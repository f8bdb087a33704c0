"""Containers of tensors and arrays, and libraries that take a tensor as it is."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxtorch

from .shared_memory import DEVICES

# -- trees -------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    left: Any
    right: Any


def test_containers_of_both_worlds() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    nothing = object()
    tree = {
        "z": OrderedDict(b=torch.ones(2), a=Pair(torch.zeros(1), None)),
        "a": [BaseModelOutput(last_hidden_state=torch.ones(1)), 3, "text", nothing],
        1: jax.tree_util.Partial(print, torch.ones(3)),
    }
    arrays = jaxtorch.to_jax(tree)
    assert list(arrays) == ["z", "a", 1]
    assert list(arrays["z"]) == ["b", "a"]
    assert isinstance(arrays["z"]["a"], Pair)
    assert arrays["z"]["a"].right is None
    assert isinstance(arrays["a"][0].last_hidden_state, jax.Array)
    assert arrays["a"][1:] == [3, "text", nothing]
    assert isinstance(arrays[1].args[0], jax.Array)
    back = jaxtorch.to_torch(arrays)
    assert isinstance(back["a"][0].last_hidden_state, torch.Tensor)
    assert torch.equal(back[1].args[0], torch.ones(3))
    held = np.ones(2)
    assert jaxtorch.to_torch([held])[0] is held


def test_a_flax_state_and_an_equinox_module() -> None:
    import equinox
    from flax import nnx

    layer = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    state = jaxtorch.to_torch(nnx.state(layer))
    assert state["kernel"].get_value().shape == torch.Size([3, 2])
    nnx.update(layer, jaxtorch.to_jax(jax.tree.map(lambda t: t * 2, state)))
    model = equinox.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    tensors = jaxtorch.to_torch(model)
    assert all(
        isinstance(leaf, torch.Tensor)
        for leaf in jax.tree.leaves(tensors)
        if hasattr(leaf, "shape")
    )
    again = jaxtorch.to_jax(tensors)
    assert equinox.tree_equal(model, again)


# -- what takes a tensor as it is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_jax_functions_that_convert_take_a_tensor(device: str) -> None:
    x = torch.arange(6.0, device=device).reshape(2, 3)
    expected = np.arange(6.0).reshape(2, 3)
    assert isinstance(jnp.asarray(x), jax.Array)
    for ours, theirs in (
        (jnp.stack([x, x]), np.stack([expected, expected])),
        (jnp.concatenate([x, jnp.ones((1, 3))]), np.concatenate([expected, np.ones((1, 3))])),
        (jnp.transpose(x), expected.T),
        (jnp.ones(3) + x, 1 + expected),
        (x * jnp.full(3, 2.0), expected * 2),
        (jnp.ones(2) @ x, expected.sum(0)),
        (jnp.var(x, axis=0), expected.var(0)),
        (jnp.zeros((2, 3)).at[:].set(x), expected),
    ):
        assert isinstance(ours, jax.Array)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    with torch.device("jax"):  # a mode of torch's, which sees every function
        array = jnp.asarray(x)
    x.zero_()
    np.testing.assert_array_equal(array, expected)
    with pytest.raises(RuntimeError, match="call_jax"):
        jnp.asarray(x.requires_grad_())


def test_numpy_functions_take_tensors_of_the_device() -> None:
    x = torch.arange(6.0, device="jax").reshape(2, 3)
    expected = np.arange(6.0).reshape(2, 3)
    for f in (np.stack, np.linalg.norm, np.median, np.percentile):
        arguments = ([x, x],) if f is np.stack else (x, 30) if f is np.percentile else (x,)
        own = ([expected, expected],) if f is np.stack else (expected, *arguments[1:])
        np.testing.assert_allclose(f(*arguments), f(*own), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(x)[:, 1], expected[:, 1])
    np.testing.assert_array_equal(np.ones((2, 3)) + np.asarray(x), expected + 1)


def test_pandas_takes_tensors_of_the_device() -> None:
    import pandas

    x = torch.arange(6.0, device="jax").reshape(2, 3)
    frame = pandas.DataFrame(x, columns=list("abc"))
    assert frame.dtypes.tolist() == [np.float32] * 3
    assert frame["b"].tolist() == [1, 4]
    assert pandas.Series(x[1]).tolist() == [3, 4, 5]
    columns = pandas.DataFrame({"step": torch.arange(3, device="jax"), "loss": x[0]})
    assert columns["step"].dtype == np.int64
    assert columns["loss"].tolist() == [0, 1, 2]
    columns["again"] = x[1]
    assert columns["again"].sum() == 12


def test_arviz_takes_tensors_of_the_device() -> None:
    import arviz

    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(2, 50, 3, generator=generator)  # chains, draws, components
    ours = arviz.summary(arviz.from_dict(posterior={"theta": draws.jax()}))
    theirs = arviz.summary(arviz.from_dict(posterior={"theta": draws.numpy()}))
    assert ours.equals(theirs)
    assert ours.shape[0] == 3
