"""Lightning on the device: its Trainer and Fabric take one that they have no name for as an Accelerator object."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import lightning
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricMixedPrecision
from lightning.fabric.strategies import SingleDeviceStrategy as FabricSingleDevice
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


def recipe():
    """The class that docs/other_libraries.md tells users to write."""
    page = Path(__file__).parents[2] / "docs" / "other_libraries.md"
    (block,) = re.findall(r"```python\n([^`]*class JaxAccelerator[^`]*)```", page.read_text())
    names = {}
    exec(block, names)
    return names["JaxAccelerator"]


JaxAccelerator = recipe()


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.losses = []
        self.hidden = set()
        self.net[0].register_forward_hook(lambda module, args, out: self.hidden.add(out.dtype))

    def training_step(self, batch, index):
        x, y = batch
        assert x.device.type == self.net[0].weight.device.type == self.device.type
        self.trained_on = (
            self.device.type
        )  # a Trainer moves the module back to the CPU when it is done
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.losses.append(loss.detach().cpu())
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("validation", nn.functional.mse_loss(self.net(x), y), prog_bar=True)

    def predict_step(self, batch, index):
        return self.net(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}


def loader():
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(32, 6, generator=generator)
    return DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4)


def trainer(device, folder, precision=None, **options):
    if device == "jax":
        options |= {"accelerator": JaxAccelerator(), "strategy": SingleDeviceStrategy("jax")}
        if precision:
            options["plugins"] = [MixedPrecision(precision, "jax")]
    else:
        options |= {"accelerator": device, "precision": precision}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(default_root_dir=folder, max_epochs=2, **quiet, **options)


def fit(device, folder, **options):
    lightning.seed_everything(0)
    model = Regression()
    running = trainer(device, folder, **options)
    running.fit(model, loader(), loader())
    return running, model


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_clip_val": 0.5}, {"accumulate_grad_batches": 2}],
    ids=["plain", "clipped", "accumulating"],
)
def test_a_trainer_gives_what_the_cpu_gives(tmp_path, options):
    runs = {device: fit(device, tmp_path / device, **options) for device in ("cpu", "jax")}
    (_, host), (running, model) = runs["cpu"], runs["jax"]
    assert running.strategy.root_device.type == model.trained_on == "jax"
    torch.testing.assert_close(torch.stack(model.losses), torch.stack(host.losses))
    for name in ("loss_epoch", "validation"):
        ours, theirs = (runs[d][0].callback_metrics[name].cpu() for d in ("jax", "cpu"))
        torch.testing.assert_close(ours, theirs)


def test_bfloat16(tmp_path):
    losses = {}
    for device in ("cpu", "jax"):
        _, model = fit(device, tmp_path / device, precision="bf16-mixed")
        assert model.hidden == {torch.bfloat16}
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        losses[device] = torch.stack(model.losses).bfloat16()
    torch.testing.assert_close(losses["jax"], losses["cpu"])


def test_a_checkpoint_goes_on_and_loads_elsewhere(tmp_path):
    whole, model = fit("jax", tmp_path)
    keep = ModelCheckpoint(tmp_path / "kept", filename="{epoch}", save_top_k=-1)
    fit("jax", tmp_path, callbacks=[keep])
    file = tmp_path / "kept" / "epoch=0.ckpt"

    resumed = Regression()
    trainer("jax", tmp_path).fit(resumed, loader(), ckpt_path=str(file))
    assert torch.equal(torch.stack(resumed.losses), torch.stack(model.losses[8:]))

    whole.save_checkpoint(tmp_path / "end.ckpt")
    for device in ("cpu", "jax"):
        loaded = Regression.load_from_checkpoint(tmp_path / "end.ckpt", map_location=device)
        assert loaded.device.type == device
        for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours.cpu(), theirs.cpu())


def test_predictions_and_validation(tmp_path):
    running, model = fit("jax", tmp_path)
    predicted = running.predict(model, loader())
    expected = [model.cpu().net(x) for x, _ in loader()]
    torch.testing.assert_close([p.cpu() for p in predicted], [e.detach() for e in expected])


def test_the_cpu_stays_the_cpu(tmp_path):
    for accelerator in ("cpu", "auto"):
        running, model = fit(accelerator, tmp_path)
        assert running.strategy.root_device.type == model.trained_on == "cpu"
        assert len(model.losses) == 16


def fabric(device, precision=None):
    plugins = []
    if precision:
        # From a small scale: 65536 overflows float16 at first, and Fabric's clipping raises then.
        scaler = torch.amp.GradScaler(device, init_scale=64.0) if precision == "16-mixed" else None
        plugins = [FabricMixedPrecision(precision, device, scaler)]
    if device == "cpu":
        return Fabric(accelerator="cpu", plugins=plugins)
    strategy = FabricSingleDevice("jax")
    return Fabric(accelerator=JaxAccelerator(), strategy=strategy, plugins=plugins)


def fabric_loop(device, precision=None):
    fabric_ = fabric(device, precision)
    fabric_.seed_everything(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = fabric_.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
    losses = []
    for x, y in fabric_.setup_dataloaders(loader()):
        loss = nn.functional.mse_loss(model(x), y)
        fabric_.backward(loss)
        fabric_.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
    assert fabric_.device.type == model.device.type == device
    return fabric_, model, optimizer, torch.stack(losses)


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(None, torch.float32), ("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)],
)
def test_fabric_gives_what_the_cpu_gives(precision, dtype):
    ours, theirs = (fabric_loop(device, precision)[-1].to(dtype) for device in ("jax", "cpu"))
    torch.testing.assert_close(ours, theirs)


def test_fabric_saves_and_loads(tmp_path):
    fabric_, model, optimizer, _ = fabric_loop("jax")
    fabric_.save(tmp_path / "state", {"model": model, "optimizer": optimizer, "step": 8})
    weights = [p.cpu() for p in model.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    rest = fabric_.load(tmp_path / "state", {"model": model, "optimizer": optimizer})
    assert rest == {"step": 8}
    for ours, theirs in zip(model.parameters(), weights, strict=True):
        assert ours.device.type == "jax"
        assert torch.equal(ours.cpu(), theirs)
