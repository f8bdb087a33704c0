"""Checkpoints: saved on one mesh, restored on another; what they hold; what does not fit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jax.sharding import PartitionSpec as P
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Build = Callable[[], nn.Module]


class Net(nn.Module):
    """Tied weights, a buffer of integers, half precision, an empty tensor and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(8)
        self.small = nn.Parameter(torch.randn(8, 8, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.tensor(2**40))
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        h = self.norm(self.embed(x))
        return self.head(h @ self.small.float())


def on_cpu() -> nn.Module:
    return Net()


def on_device() -> nn.Module:
    return Net().jax()


def over(*shape: int) -> Build:
    names = ("data", "model")[: len(shape)]

    def build() -> nn.Module:
        return jaxtorch.fsdp(Net().jax(), jaxtorch.mesh(shape, names), axis="data")

    build.__name__ = f"over_{'x'.join(map(str, shape))}"
    return build


PLACES = [on_cpu, on_device, over(8), over(4, 2), over(2)]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    device = next(model.parameters()).device
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randint(16, (8,), generator=generator).to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state.detach().cpu()]
    if isinstance(state, dict):
        return [leaf for key in state for leaf in values(state[key])]
    return [leaf for node in state for leaf in values(node)] if isinstance(state, list) else []


def assert_same(one: object, other: object) -> None:
    a, b = values(one), values(other)
    assert len(a) == len(b) > 0
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(
            x.view(torch.uint8) if x.dim() else x, y.view(torch.uint8) if y.dim() else y
        )


def spec_of(x: Tensor) -> object:
    return jaxtorch.sharding_of(x) if x.device.type == "jax" else "cpu"


@pytest.mark.parametrize("to", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("source", [over(8), on_cpu], ids=lambda f: f.__name__)
def test_it_is_restored_bit_by_bit_where_the_model_lies(
    source: Build, to: Build, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = source()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, step=2)
    torch.manual_seed(1)
    other = to()
    where = [spec_of(p) for p in other.parameters()]
    parameters = list(other.parameters())
    again = optimizer_of(other)
    assert jaxtorch.restore_checkpoint(tmp_path, other, again) == 2
    assert_same(model.state_dict(), other.state_dict())
    assert_same(optimizer.state_dict()["state"], again.state_dict()["state"])
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    assert other.head.weight is other.embed.weight
    assert [spec_of(p) for p in other.parameters()] == where
    for parameter in other.parameters():
        moments = again.state[parameter]
        assert spec_of(moments["exp_avg"]) == spec_of(parameter)
        assert spec_of(moments["exp_avg_sq"]) == spec_of(parameter)


def test_training_goes_on_with_the_same_losses(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = over(8)()
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, range(3))
    scheduler.step()
    extra = {"scheduler": scheduler, "epoch": 7, "seen": torch.arange(3, device="jax")}
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, 3, extra=extra)
    noise = torch.randn(4, device="jax"), torch.randn(4)
    rest = train(model, optimizer, range(3, 6))  # while it is written
    again = over(8)()
    new = optimizer_of(again)
    found: dict[str, object] = {
        "scheduler": torch.optim.lr_scheduler.StepLR(new, 1, 0.5),
        "epoch": 0,
    }
    assert jaxtorch.restore_checkpoint(tmp_path, again, new, extra=found) == 3
    assert new.param_groups[0]["lr"] == 5e-3
    assert found["epoch"] == 7
    assert torch.equal(found["seen"].cpu(), torch.arange(3))
    assert found["scheduler"].last_epoch == 1
    assert torch.equal(torch.randn(4, device="jax"), noise[0])
    assert torch.equal(torch.randn(4), noise[1])
    assert train(again, new, range(3, 6)) == rest


def test_captured_steps_that_donate_do_not_reach_it(tmp_path: Path) -> None:
    model = nn.Linear(512, 512).jax()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.ones(4, 512, device="jax")

    @jaxtorch.jit
    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step()
    before = model.weight.detach().cpu()
    jaxtorch.save_checkpoint(tmp_path, model, step=1)
    for _ in range(5):
        step()
    assert not torch.equal(model.weight.detach().cpu(), before)
    jaxtorch.restore_checkpoint(tmp_path, model)
    assert torch.equal(model.weight.detach().cpu(), before)


def test_only_the_last_ones_stay(tmp_path: Path) -> None:
    model = nn.Linear(2, 2).jax()
    for step in range(1, 6):
        model.weight.data.fill_(step)
        jaxtorch.save_checkpoint(tmp_path, model, step=step, keep=2, wait=True)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["4", "5"]
    jaxtorch.restore_checkpoint(tmp_path, model, step=4)
    assert model.weight[0, 0].item() == 4


def a_file(folder: Path) -> Path:
    """A file beside a folder."""
    file = folder.with_name("file")
    file.touch()
    return file


MISTAKES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "no folder": (
        lambda d: jaxtorch.restore_checkpoint(d / "none", nn.Linear(2, 3)),
        FileNotFoundError,
        "no checkpoint was saved there",
    ),
    "an empty folder": (
        lambda d: jaxtorch.restore_checkpoint(d.parent, nn.Linear(2, 3)),
        FileNotFoundError,
        "has no checkpoint",
    ),
    "another step": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 3), step=6),
        FileNotFoundError,
        r"no checkpoint of step 6: it has \[5\]",
    ),
    "other names": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Sequential(nn.Linear(2, 3))),
        ValueError,
        "the checkpoint has no 0.weight, 0.bias; the model has no weight, bias",
    ),
    "another size": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 4).jax()),
        ValueError,
        r"weight is float32\[3, 2\] in the checkpoint, but float32\[4, 2\] here",
    ),
    "another dtype": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 3).double()),
        ValueError,
        r"weight is float32\[3, 2\] in the checkpoint, but float64\[3, 2\] here",
    ),
    "other groups": (
        lambda d: jaxtorch.restore_checkpoint(
            d, m := nn.Linear(2, 3), torch.optim.AdamW([m.weight])
        ),
        ValueError,
        r"groups of \[2\] parameters, but this one has groups of \[1\]",
    ),
    "an extra that is not there": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 3), extra={"epoch": 0}),
        ValueError,
        "the checkpoint has no extra 'epoch'",
    ),
    "an earlier step": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), step=5),
        ValueError,
        "already has a checkpoint of step 5, so step 5 cannot be saved there",
    ),
    "what cannot be stored": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), step=6, extra={"f": print}),
        TypeError,
        r"^extra\.f is of the type builtins\.builtin_function_or_method, which a checkpoint cannot store",
    ),
    "an array of NumPy": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), step=6, extra={"x": [np.ones(3)]}),
        TypeError,
        r"^extra\.x\.0 is of the type numpy\.ndarray.*torch\.from_numpy",
    ),
    "a key that cannot be stored": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), step=6, extra={"x": {print: 1}}),
        TypeError,
        "^the state has an object as the key of a dict, which a checkpoint cannot store",
    ),
    "another optimizer": (
        lambda d: jaxtorch.restore_checkpoint(
            d, m := nn.Linear(2, 3), torch.optim.SGD(m.parameters(), momentum=0.9)
        ),
        ValueError,
        "its optimizer is of the class AdamW, but this one is SGD",
    ),
    "an optimizer with options of the same names": (
        lambda d: jaxtorch.restore_checkpoint(
            d, m := nn.Linear(2, 3), torch.optim.Adamax(m.parameters())
        ),
        ValueError,
        "its optimizer is of the class AdamW, but this one is Adamax",
    ),
    "a state instead of a model": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3).state_dict(), step=6),
        TypeError,
        "model must be a module .* OrderedDict",
    ),
    "a step in place of the optimizer": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), 7),
        TypeError,
        "optimizer must be an optimizer .* int",
    ),
    "a list of optimizers": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 3), []),
        TypeError,
        "optimizer must be an optimizer .* list",
    ),
    "extras without names": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3), step=6, extra=[1]),
        TypeError,
        "extra must be a dict",
    ),
    "a text as the step to restore": (
        lambda d: jaxtorch.restore_checkpoint(d, nn.Linear(2, 3), step="5"),
        TypeError,
        "step must be a whole number, not '5'",
    ),
    **{
        f"{name}={value!r}": (
            lambda d, given={name: value}: jaxtorch.save_checkpoint(
                d, nn.Linear(2, 3), **{"step": 6} | given
            ),
            TypeError if isinstance(value, float | str | bool) else ValueError,
            f"{name}.* must be",
        )
        for name, value in [
            *(("step", v) for v in (-1, 7.5, True, "a")),
            *(("keep", v) for v in (0, -1, 1.5, True, "a")),
        ]
    },
    "a file as the folder": (
        lambda d: jaxtorch.save_checkpoint(a_file(d), nn.Linear(2, 3)),
        NotADirectoryError,
        "cannot be the folder of a run: it is a file",
    ),
    "a folder in a file": (
        lambda d: jaxtorch.save_checkpoint(a_file(d) / "run", nn.Linear(2, 3)),
        NotADirectoryError,
        "cannot be the folder of a run: Not a directory",
    ),
    "a file to restore from": (
        lambda d: jaxtorch.restore_checkpoint(a_file(d), nn.Linear(2, 3)),
        NotADirectoryError,
        "is a file, not the folder of a run",
    ),
    "a tensor without values": (
        lambda d: jaxtorch.save_checkpoint(d, nn.Linear(2, 3, device="meta"), step=6),
        TypeError,
        "has no dense values",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_changes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake, kind, message = MISTAKES[name]
    folder = tmp_path / "a" / "run"
    model = nn.Linear(2, 3)
    jaxtorch.save_checkpoint(
        folder, model, torch.optim.AdamW(model.parameters()), step=5, wait=True
    )
    made: list[tuple[nn.Module, dict[str, Tensor]]] = []
    initialize = nn.Linear.__init__

    def noted(self: nn.Linear, *args: object, **kwargs: object) -> None:
        initialize(self, *args, **kwargs)
        made.append((self, {k: v.clone() for k, v in self.state_dict().items()}))

    monkeypatch.setattr(nn.Linear, "__init__", noted)
    random = torch.get_rng_state
    with pytest.raises(kind, match=message) as raised:
        mistake(folder)
    state = random()
    assert "\n" not in str(raised.value)
    for module, before in made:
        for key, value in module.state_dict().items():
            assert value.is_meta or torch.equal(value.cpu(), before[key].cpu())
    assert torch.equal(torch.get_rng_state(), state)
    assert [p.name for p in folder.iterdir()] == ["5"]


def test_without_orbax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match="pip install orbax-checkpoint"):
        jaxtorch.save_checkpoint(tmp_path, nn.Linear(2, 2))


KILLED = """
import os, signal, sys, torch, jaxtorch
model = torch.nn.Linear(4, 4).jax()
with torch.no_grad():
    model.weight.fill_(1)
jaxtorch.save_checkpoint(sys.argv[1], model, step=1, wait=True)
with torch.no_grad():
    model.weight.fill_(2)
replace = os.rename
def killed(source, target, *rest, **more):
    if "tmp" in str(source):
        print("killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(source, target, *rest, **more)
os.rename = os.replace = killed
jaxtorch.save_checkpoint(sys.argv[1], model, step=2, wait=True)
"""


def test_a_kill_in_the_middle_leaves_the_one_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert "killed" in done.stdout
    left = [p.name for p in tmp_path.iterdir()]
    assert any(re.match(r"2\..*tmp", name) for name in left)
    model = nn.Linear(4, 4).jax()
    assert jaxtorch.restore_checkpoint(tmp_path, model) == 1
    assert (model.weight == 1).all()
    jaxtorch.save_checkpoint(tmp_path, model, step=2, wait=True)
    assert jaxtorch.restore_checkpoint(tmp_path, model) == 2


# Root may write to any folder, so the call that creates the folder of step 2 is refused.
BLOCKED = """
import os, sys, torch, jaxtorch
model = torch.nn.Linear(4, 4).jax()
jaxtorch.save_checkpoint(sys.argv[1], model, step=1, wait=True)
make = os.mkdir
def refused(path, *rest, **more):
    if "/2" in str(path):
        raise PermissionError(13, "Permission denied", str(path))
    return make(path, *rest, **more)
os.mkdir = refused
try:
    jaxtorch.save_checkpoint(sys.argv[1], model, step=2)
except PermissionError as error:
    print(error)
os.mkdir = make
jaxtorch.save_checkpoint(sys.argv[1], model, step=3)
"""


def test_a_folder_that_cannot_be_created_is_an_error_at_once(tmp_path: Path) -> None:
    """Orbax, left to its threads, let the program wait for minutes at its end."""
    command = [sys.executable, "-c", BLOCKED, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"{tmp_path} cannot be the folder of a run: Permission denied.\n"
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "3"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Orbax's threads
def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    jaxtorch.save_checkpoint(tmp_path, model, step=1, wait=True)
    before = model.weight.detach().clone()
    for file in (tmp_path / "1" / "arrays").rglob("*"):
        if file.parent.name == "d":
            file.write_bytes(b"x")
    with pytest.raises(RuntimeError, match=r"of step 1 in .* cannot be read") as raised:
        jaxtorch.restore_checkpoint(tmp_path, model)
    assert len(str(raised.value)) < 600
    assert torch.equal(model.weight, before)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    extra = {"best": np.float64(1.5), "seen": [np.int32(3), np.bool_(True)]}
    jaxtorch.save_checkpoint(tmp_path, model, step=np.int64(1), extra=extra)
    found: dict[str, object] = {}
    assert jaxtorch.restore_checkpoint(tmp_path, model, extra=found) == 1
    assert found == {"best": 1.5, "seen": [3, True]}


class Renamed(torch.optim.AdamW):
    """Its class has another name than the one that was saved."""


@pytest.mark.parametrize("kind", [torch.optim.Adam, Renamed])
def test_an_optimizer_with_the_same_options_takes_the_state(
    kind: type[torch.optim.Adam], tmp_path: Path
) -> None:
    model = nn.Linear(2, 3).jax()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device="jax")).sum().backward()
    optimizer.step()
    jaxtorch.save_checkpoint(tmp_path, model, optimizer, step=1)
    again = kind(model.parameters())
    jaxtorch.restore_checkpoint(tmp_path, model, again)
    assert_same(optimizer.state_dict()["state"], again.state_dict()["state"])


ENDS = """
import sys, torch, jaxtorch
jaxtorch.save_checkpoint(sys.argv[1], torch.nn.Linear(4, 4).jax(), step=1)
"""


def test_a_program_that_ends_at_once_finishes_its_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=dict(os.environ)
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["1"]


def test_specs_that_do_not_follow_the_first_dimension(tmp_path: Path) -> None:
    mesh = jaxtorch.mesh((4, 2), ("data", "model"))
    x = jaxtorch.shard(nn.Linear(8, 16, bias=False).jax(), {"weight": P("model", "data")}, mesh)
    jaxtorch.save_checkpoint(tmp_path, x, step=1)
    y = jaxtorch.shard(nn.Linear(8, 16, bias=False).jax(), {"weight": P(None, "model")}, mesh)
    jaxtorch.restore_checkpoint(tmp_path, y)
    assert torch.equal(x.weight.cpu(), y.weight.cpu())
    assert spec_of(y.weight).spec == P(None, "model")
