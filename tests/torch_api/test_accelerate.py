"""Hugging Face Accelerate on the device: `ACCELERATE_TORCH_DEVICE=jax` is how it takes one that it has no name for."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICES = ["cpu", "jax"]


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Makes an Accelerator of one device; they share state, which is forgotten before each and after the last."""
    monkeypatch.chdir(tmp_path)

    def forget():
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()

    def accelerator(device, **options):
        forget()
        if device is None:
            monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
        else:
            monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", device)
        return Accelerator(**options)

    yield accelerator
    forget()


def parts(steps=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    data = torch.randn(steps * 4, 6)
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    return model, optimizer, loader, schedule


def train(accelerator, model, optimizer, loader, schedule):
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather_for_metrics(loss.detach()).reshape(()).cpu())
    return torch.stack(losses)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_accumulation_steps": 2}, {"step_scheduler_with_optimizer": False}],
    ids=["plain", "accumulating", "own schedule"],
)
def test_a_loop_gives_what_the_cpu_gives(make, options):
    results = {}
    for device in DEVICES:
        accelerator = make(device, **options)
        model, *rest = accelerator.prepare(*parts())
        assert accelerator.device.type == device
        losses = train(accelerator, model, *rest)
        assert {p.device.type for p in model.parameters()} == {device}
        weights = accelerator.get_state_dict(model)
        results[device] = losses, {k: v.cpu() for k, v in weights.items()}
    torch.testing.assert_close(results["jax"], results["cpu"])


def test_bfloat16(make):
    """Autocast inside, float32 outside."""
    results = {}
    for device in DEVICES:
        accelerator = make(device, mixed_precision="bf16")
        model, *rest = accelerator.prepare(*parts())
        seen = []
        accelerator.unwrap_model(model)[0].register_forward_hook(
            lambda module, args, out, seen=seen: seen.append(out.dtype)
        )
        results[device] = train(accelerator, model, *rest)
        assert set(seen) == {torch.bfloat16}
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        with accelerator.autocast():
            product = torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)
        assert product.dtype == torch.bfloat16
    torch.testing.assert_close(results["jax"].bfloat16(), results["cpu"].bfloat16())


@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "pickle"])
def test_a_saved_state_goes_on_as_if_it_had_not_stopped(make, tmp_path, safe):
    accelerator = make("jax")
    model, *rest = accelerator.prepare(*parts())
    train(accelerator, model, *rest)
    accelerator.save_state(tmp_path / "state", safe_serialization=safe)
    expected = train(accelerator, model, *rest)

    accelerator = make("jax")
    model, *rest = accelerator.prepare(*parts())
    accelerator.load_state(tmp_path / "state")
    assert {p.device.type for p in model.parameters()} == {"jax"}
    assert torch.equal(train(accelerator, model, *rest), expected)


def test_the_cpu_stays_the_cpu(make):
    """Nothing of the device is asked for, nothing of it is used."""
    for choose, options in (("cpu", {}), (None, {"cpu": True}), (None, {})):
        accelerator = make(choose, **options)
        model, *rest = accelerator.prepare(*parts())
        assert accelerator.device.type == "cpu"
        assert train(accelerator, model, *rest).isfinite().all()
        assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_set_seed_seeds_the_device():
    draws = []
    for _ in range(2):
        set_seed(3)
        draws.append(torch.rand(4, device="jax").tolist())
    assert draws[0] == draws[1]


def test_a_model_is_saved_from_the_device_and_placed_on_it(make, tmp_path):
    accelerator = make("jax")
    model = accelerator.prepare(parts()[0])
    accelerator.save_model(model, tmp_path)
    with init_empty_weights():
        empty = parts()[0]
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    # 0, the accelerator's index: of names, safetensors takes only those it knows.
    loaded = load_checkpoint_and_dispatch(empty, str(tmp_path / "model.safetensors"), {"": 0})
    x = torch.ones(2, 6, device="jax")
    torch.testing.assert_close(loaded(x), model(x))
