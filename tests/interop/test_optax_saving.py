"""What `optax_optimizer` saves, loads and copies."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import optax
import pytest
import torch
from torch import nn

import jaxtorch

from .optax_cases import TRANSFORMATIONS, backward, injected, model_of

# -- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "jax"])
@pytest.mark.parametrize("name", ["adafactor", "injected", "noisy", "several steps", "two kinds"])
def test_a_saved_state_goes_on_as_if_never_interrupted(name: str, device: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return jaxtorch.optax_optimizer(TRANSFORMATIONS[name](), model.parameters())

    model = model_of(device)
    optimizer = make(model)
    for i in range(3):
        backward(model, i)
        optimizer.step()
    if "lr" in optimizer.param_groups[0]:
        optimizer.param_groups[0]["lr"] = 0.03
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    for i in range(3, 6):
        backward(model, i)
        optimizer.step()
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    other = model_of(device)
    resumed = make(other)
    backward(other)
    resumed.step()  # of its own, to be forgotten
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert resumed.param_groups[0].get("lr") == optimizer.param_groups[0].get("lr")
    for i in range(3, 6):
        backward(other, i)
        resumed.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_that_another_library_moves() -> None:
    """As Lightning does, which puts what it finds in `optimizer.state` where it thinks that the parameters are."""
    models = model_of("cpu"), model_of("cpu")
    moved, other = (jaxtorch.optax_optimizer(injected(), m.parameters()) for m in models)
    for i in range(4):
        if i == 1:
            for key, value in moved.state.items():
                moved.state[key] = torch.utils._pytree.tree_map(lambda t: t.to("cpu"), value)
        if i == 2:
            moved.load_state_dict(copy.deepcopy(moved.state_dict()))
        for model, optimizer in zip(models, (moved, other), strict=True):
            backward(model, i)
            optimizer.step()
    for p, q in zip(*(m.parameters() for m in models), strict=True):
        assert torch.equal(p, q)


def test_accelerate_takes_it() -> None:
    code = """
import accelerate, jaxtorch, optax, tempfile, torch
accelerator = accelerate.Accelerator()
model = torch.nn.Linear(2, 1)
optimizer = jaxtorch.optax_optimizer(optax.inject_hyperparams(optax.adam)(0.1), model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
assert next(model.parameters()).is_jax
def step():
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2, device="jax")).square().sum()
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()
step()
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    first = [step() for _ in range(3)]
    accelerator.load_state(folder)
    assert [step() for _ in range(3)] == first
"""
    environment = {**os.environ, "ACCELERATE_TORCH_DEVICE": "jax"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_loaded_state_keeps_captured_programs() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())

    @jaxtorch.jit
    def step() -> torch.Tensor:
        loss = backward(model)
        optimizer.step()
        return loss

    step()
    step()
    misses = step.cache_info().misses
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    expected = [step().item() for _ in range(3)]
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    assert [step().item() for _ in range(3)] == expected
    assert step.cache_info().misses == misses


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())
    backward(model)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    small = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    for state, words in (
        (jaxtorch.optax_optimizer(optax.sgd(0.1, 0.9), model.parameters()), "different optax"),
        (jaxtorch.optax_optimizer(injected(), small), "different parameters"),
        (torch.optim.AdamW(model.parameters()), "not from an optax optimizer"),
        (jaxtorch.optax_optimizer(injected(), [{"params": [p]} for p in small]), "number of param"),
    ):
        with pytest.raises(ValueError, match=words):
            optimizer.load_state_dict(state.state_dict())
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_a_deep_copy_is_an_optimizer_of_its_own_and_pickle_says_what_to_save() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(injected(), model.parameters())
    backward(model)
    twin, copied = copy.deepcopy((model, optimizer))
    assert copied.param_groups[0]["params"][0] is next(twin.parameters())
    backward(twin)
    copied.step()
    assert optimizer.state["optax"][0]["count"] == 0
    assert copied.state["optax"][0]["count"] == 1
    optimizer.step()
    assert all(
        torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    for save in (pickle.dumps, lambda o: torch.save(o, io.BytesIO())):
        with pytest.raises(TypeError, match=r"state_dict\(\)"):
            save(optimizer)
