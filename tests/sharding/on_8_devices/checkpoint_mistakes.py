"""Mistakes with checkpoints: an error of one sentence, and nothing is changed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Build = Callable[[], nn.Module]


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
