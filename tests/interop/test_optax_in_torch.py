"""`optax_optimizer` in torch's hands: hooks, scalers, geometries, errors, interrupts, captured steps."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import jaxtorch
from jaxtorch.capture.errors import CaptureError

from .optax_cases import backward, injected, model_of

# -- torch's ways ----------------------------------------------------------------------------------------------------


def test_hooks_run_and_repr_shows_the_group() -> None:
    w = nn.Parameter(torch.ones(2, device="jax"))
    optimizer = jaxtorch.optax_optimizer(injected(), [w])
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert seen == ["before", "after"]
    assert "lr: 0.01" in repr(optimizer)
    optimizer.zero_grad()
    assert w.grad is None


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_grad_scaler_skips_a_step_with_infinite_gradients(device: str) -> None:
    w = nn.Parameter(torch.ones(3, device=device))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.1), [w])
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((w * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(w.detach().cpu(), torch.full((3,), 0.9))


def test_a_parameter_is_updated_where_it_lies() -> None:
    host = nn.Parameter(torch.ones(64))
    device = nn.Parameter(torch.ones(64, device="jax"))
    views = [p.detach()[1:] for p in (host, device)]
    address = host.data_ptr()
    optimizers = [jaxtorch.optax_optimizer(optax.sgd(1.0), [p]) for p in (host, device)]

    def step() -> None:
        for p, optimizer in zip((host, device), optimizers, strict=True):
            p.grad = torch.full_like(p, 0.25)
            optimizer.step()

    step()
    assert host.data_ptr() == address
    memory = device.untyped_storage().buffer.array.unsafe_buffer_pointer()
    step()
    assert device.untyped_storage().buffer.array.unsafe_buffer_pointer() == memory  # donated
    held = jaxtorch.to_jax(device.detach())
    step()
    assert held.tolist() == [0.5] * 64
    assert all(v.tolist() == [0.25] * 63 for v in views)


@pytest.mark.parametrize("captured", [False, True])
def test_parameters_and_gradients_of_every_geometry(captured: bool) -> None:
    flat = torch.arange(12.0, device="jax")
    whole = torch.ones(3, device="jax")
    params = [
        nn.Parameter(flat[:6].view(2, 3)),
        nn.Parameter(flat[6:]),
        nn.Parameter(
            torch.ones(2, 3, 4, 5, device="jax").contiguous(memory_format=torch.channels_last)
        ),
        nn.Parameter(torch.ones(3, 4, device="jax").t()),
        nn.Parameter(whole),
        nn.Parameter(whole),  # the same memory: what comes last is what it holds
    ]
    optimizer = jaxtorch.optax_optimizer(optax.sgd(1.0), params)
    expected = [p.detach().cpu().clone() - 2 for p in params]

    def step() -> None:
        for p in params:
            p.grad = torch.ones((), device="jax").expand(p.shape)
        optimizer.step()

    run = jaxtorch.jit(step) if captured else step
    run()
    run()
    for p, e in zip(params[:4], expected, strict=False):
        assert torch.equal(p.detach().cpu(), e)
    assert flat.tolist() == [x - 2.0 for x in range(12)]
    assert whole.tolist() == params[5].tolist() == [-1.0] * 3


def test_a_gradient_that_is_the_parameter_itself() -> None:
    w = nn.Parameter(torch.full((3,), 4.0, device="jax"))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
    w.grad = w.detach()
    optimizer.step()
    assert w.tolist() == [2.0] * 3


def test_autograd_knows_that_the_parameters_were_written() -> None:
    for device in ("cpu", "jax"):
        w = nn.Parameter(torch.ones(3, device=device))
        optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
        loss = (w * w).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_nothing_grows() -> None:
    model = model_of("jax")
    optimizer = jaxtorch.optax_optimizer(optax.adamw(1e-3), model.parameters())

    def step() -> None:
        backward(model)
        optimizer.step()

    for _ in range(20):
        step()
    gc.collect()
    before, count = len(jax.live_arrays()), jaxtorch.compile_count()
    for _ in range(200):
        step()
    gc.collect()
    # A leak keeps at least one array of each step. Other tests of this process may have left caches that fill up.
    assert len(jax.live_arrays()) < before + 100
    assert jaxtorch.compile_count() == count


# -- errors leave everything as it was --------------------------------------------------------------------------------


def step_of(w: nn.Parameter, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        (w * 2).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("way", ["cpu", "jax", "jit"])
def test_an_error_in_the_update_leaves_everything_as_it_was(way: str) -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        raise ZeroDivisionError("in the middle")

    broken = optax.chain(optax.adam(0.1), optax.GradientTransformation(lambda p: (), update))
    growing = optax.GradientTransformation(
        lambda p: jnp.zeros(1), lambda u, s, p=None: (u, jnp.zeros(s.shape[0] + 1))
    )
    for transformation, error, words in (
        (broken, ZeroDivisionError, "in the middle"),
        (growing, ValueError, "different structure from its init"),
    ):
        w = nn.Parameter(torch.ones(3, device="cpu" if way == "cpu" else "jax"))
        optimizer = jaxtorch.optax_optimizer(transformation, [w])
        before = copy.deepcopy(optimizer.state_dict())

        step = step_of(w, optimizer)
        with pytest.raises(error, match=words):
            (jaxtorch.jit(step) if way == "jit" else step)()
        assert w.tolist() == [1.0] * 3
        assert way != "jit" or w.grad is None
        torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_captured_code_needs_the_device_and_an_optimizer_that_is_there() -> None:
    host = nn.Parameter(torch.ones(2))
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), [host])
    x = torch.ones(2, device="jax")

    @jaxtorch.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        host.grad = torch.ones(2)
        optimizer.step()
        return x * 2

    with pytest.raises(RuntimeError, match=r"model\.to\('jax'\)"):
        step(x)
    assert host.tolist() == [1, 1]

    @jaxtorch.jit
    def make(x: torch.Tensor) -> torch.Tensor:
        w = nn.Parameter(x * 2)
        jaxtorch.optax_optimizer(optax.sgd(0.5), [w])
        return w

    with pytest.raises(CaptureError, match="create the optimizer outside"):
        make(x)


def test_a_whole_step_is_one_program_and_trains_as_eagerly() -> None:
    models = [model_of("jax") for _ in range(2)]
    optimizers = [
        jaxtorch.optax_optimizer(
            optax.chain(optax.clip_by_global_norm(0.5), injected()), model.parameters()
        )
        for model in models
    ]

    def body(i: int, x: torch.Tensor) -> torch.Tensor:
        optimizers[i].zero_grad()
        loss = models[i](x).square().mean()
        loss.backward()
        optimizers[i].step()
        return loss

    step = jaxtorch.jit(lambda x: body(0, x))
    for x in torch.randn(5, 6, 4, device="jax"):
        torch.testing.assert_close(step(x.clone()), body(1, x).detach())
    # The step names both optimizers, and those of the other model get gradients after its first call.
    assert step.cache_info().misses == 2
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_an_interrupted_step_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where parameters of the CPU are copied back, Ctrl-C waits."""
    from jaxtorch.device import interrupts

    open_: list[bool] = []
    copy_ = torch.Tensor.copy_

    def watched(self: torch.Tensor, *args: Any) -> torch.Tensor:
        open_.append(interrupts._patience(sys._getframe()) == 0)
        return copy_(self, *args)

    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = jaxtorch.optax_optimizer(optax.sgd(0.5), params)
    for p in params:
        p.grad = torch.ones_like(p)
    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    optimizer.step()
    assert open_ == [False, False, False]
    assert interrupts._patience(sys._getframe()) == 0


def test_parameters_over_several_devices() -> None:
    code = """
import jax, jax.numpy as jnp, jaxtorch, optax, torch
from jax.sharding import AxisType, NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
rows = NamedSharding(mesh, PartitionSpec("rows"))
w = torch.nn.Parameter(jaxtorch.to_torch(jax.device_put(jnp.ones((8, 2)), rows)))
adam = optax.inject_hyperparams(optax.adam)(0.5)
optimizer = jaxtorch.optax_optimizer(adam, [w])
for _ in range(3):
    w.grad = jaxtorch.to_torch(jax.device_put(jnp.ones((8, 2)), rows))
    optimizer.step()
array = jaxtorch.to_jax(w.detach())
assert array.sharding == rows, array.sharding
expected = jnp.ones((8, 2))
state = adam.init(expected)
for _ in range(3):
    updates, state = adam.update(jnp.ones((8, 2)), state, expected)
    expected = optax.apply_updates(expected, updates)
assert jnp.allclose(array, expected)
"""
    four = {"JAX_NUM_CPU_DEVICES": "4"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **four})


def test_numbers_of_a_torch_scheduler_are_python_numbers() -> None:
    """What is saved of a group can be read without jax."""
    optimizer = jaxtorch.optax_optimizer(injected(), [nn.Parameter(torch.ones(2))])
    kinds = {type(v) for k, v in optimizer.state_dict()["param_groups"][0].items() if k != "params"}
    assert kinds == {float}
    assert not any(isinstance(v, np.generic) for v in optimizer.param_groups[0].values())
