"""Checkpoints of a training run, written by Orbax: `save_checkpoint` and `restore_checkpoint`.

A checkpoint has two items: the arrays by name, and the outline that says where they belong (`training_state.py`). Each
process writes the parts that it holds. Orbax copies the arrays to the host before `save_checkpoint` returns, and its
threads write them to a temporary folder while training continues. The folder is renamed once it is complete, so the
previous checkpoint survives if the process is killed.

`restore_checkpoint` compares the outline with the live objects before it reads any array. Then it reads each array with
the sharding of the live tensor, whatever mesh it was saved on, and loads the state dicts.
"""

from __future__ import annotations

import base64
import operator
import os
import threading
from collections.abc import Mapping, MutableMapping
from typing import SupportsIndex

import numpy as np
import torch
from torch import nn

from ..interop.values import to_torch
from ..storage import placement
from ..storage.transfer import to_host
from . import checkpoint_files
from .checkpoint_files import Where
from .layouts import sharding_of
from .training_state import (
    Array,
    Stateful,
    StoredTensor,
    Tree,
    differences,
    filled,
    outlined,
    slots,
    tensors_of,
    to_bytes,
)

Tensor = torch.Tensor


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    *,
    keep: int | None = 3,
    extra: Mapping[str, object] | None = None,
    wait: bool = False,
) -> None:
    """Save a model, an optimizer and the generators of random numbers as the checkpoint of a step.

    It returns once the values are copied; they are written while training continues. With several processes, every
    process calls it and writes the parts that it holds.

    Args:
        path: the folder of the run; each checkpoint is a folder in it, named by its step.
        model: a module; its tensors may be on any devices and meshes.
        optimizer: its state is stored, with step counters and learning rates.
        step: the number of the checkpoint; it must be larger than those already in the folder.
        keep: how many of the latest checkpoints to keep, at least 1; None keeps all.
        extra: further values to store, by name: objects with `state_dict` (a scheduler, a `GradScaler`), or numbers,
            strings, tensors and containers of them. NumPy's numbers are stored as those of Python.
        wait: return only once the checkpoint is written.

    Raises:
        ImportError: Orbax is not installed.
        ValueError: the folder already has this step, or a later one; `step` or `keep` is too small.
        TypeError: a value cannot be stored, or an argument has the wrong type.
        OSError: the folder cannot be created: it is a file, or may not be written.
        RuntimeError: the previous checkpoint could not be written; with `wait`, this one.

    Example:
        >>> import tempfile, torch, jaxtorch
        >>> model = torch.nn.Linear(2, 1).jax()
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> run = tempfile.mkdtemp()
        >>> jaxtorch.save_checkpoint(run, model, optimizer, step=20)
        >>> jaxtorch.restore_checkpoint(run, model, optimizer)
        20

    See https://orbax.readthedocs.io
    """
    _check_objects(model, optimizer, extra)
    step = _whole_number("step", step, 0)
    keep = None if keep is None else _whole_number("keep (None keeps all)", keep, 1)
    folder = checkpoint_files.folder_of(path)
    manager = checkpoint_files.manager_of(folder, keep)
    checkpoint_files.finished(manager, folder, wait=False)
    latest = manager.latest_step()
    if latest is not None and step <= latest:
        raise ValueError(
            f"{folder} already has a checkpoint of step {latest}, so step {step} cannot be saved there: steps must "
            "increase. Remove the later checkpoints, or save to another folder."
        )
    arrays: dict[str, Array] = {}
    outline = outlined(_state(model, optimizer, extra or {}), "", arrays)
    nbytes = sum(array.nbytes for array in arrays.values())
    text = base64.b64encode(to_bytes(outline)).decode()
    checkpoint_files.write(manager, folder, step, arrays, text)
    threading.Thread(
        target=checkpoint_files.report, args=(manager, step, nbytes), name="jaxtorch-checkpoint"
    ).start()
    if wait:
        checkpoint_files.finished(manager, folder, wait=True)


def restore_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int | None = None,
    *,
    extra: MutableMapping[str, object] | None = None,
) -> int:
    """Load a checkpoint into a model, an optimizer and the generators of random numbers.

    Each tensor keeps its device and sharding, so a checkpoint can be restored on another mesh, with another number of
    processes and on other devices. If the checkpoint does not match, nothing is changed.

    Args:
        path: the folder of the run.
        model: the model, created and sharded as for training.
        optimizer: the optimizer over the model's parameters; its state gets their shardings.
        step: the step to restore, by default the latest.
        extra: objects with `state_dict` are loaded; for other names, the stored value is put into the mapping.

    Returns:
        The step.

    Raises:
        ImportError: Orbax is not installed.
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint is of another model or optimizer; the message names the differences.

    Example:
        >>> import tempfile, torch, jaxtorch
        >>> model = torch.nn.Linear(2, 1).jax()
        >>> run = tempfile.mkdtemp()
        >>> jaxtorch.save_checkpoint(run, model, step=20)
        >>> jaxtorch.restore_checkpoint(run, model)
        20
    """
    _check_objects(model, optimizer, extra)
    step = None if step is None else _whole_number("step", step, 0)
    folder = checkpoint_files.folder_of(path)
    manager = checkpoint_files.existing(folder)
    checkpoint_files.finished(manager, folder, wait=True)
    step = checkpoint_files.chosen(manager, folder, step)
    outline = checkpoint_files.read_outline(manager, step, folder)
    extra = {} if extra is None else extra
    live = _state(model, optimizer, extra)
    stored = {name: outline.get(name) for name in live}
    if wrong := _mismatches(live, stored, optimizer):
        raise ValueError(
            f"the checkpoint of step {step} in {folder} does not match: {'; '.join(wrong)}. Nothing was changed."
        )
    where = _shardings(stored, live, optimizer)
    arrays = checkpoint_files.read_arrays(manager, folder, step, where)

    def tensor(slot: StoredTensor) -> Tensor:
        if slot.name not in arrays:
            return torch.empty(slot.size, dtype=slot.torch_dtype, device=slot.device)
        array = arrays[slot.name]
        return to_host(array) if isinstance(array, np.ndarray) else to_torch(array, device="jax")

    state = filled(stored, tensor)
    assert isinstance(state, dict)
    _load(state, model, optimizer, extra)
    return step


def _check_objects(model: object, optimizer: object, extra: object) -> None:
    """Check the types of what is saved or restored.

    Raises:
        TypeError: one is wrong.
    """
    for name, kind, value in (
        ("model", "a module", model),
        ("optimizer", "an optimizer", optimizer),
    ):
        if not (isinstance(value, Stateful) or (name == "optimizer" and value is None)):
            raise TypeError(
                f"{name} must be {kind} with its state_dict method, not an object of type {type(value).__name__}."
            )
    if extra is not None and not isinstance(extra, Mapping):
        raise TypeError(f"extra must be a dict of values by name, not {type(extra).__name__}.")


def _whole_number(name: str, value: object, least: int) -> int:
    """An argument as an int.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be a whole number, not {value!r}.")
    number = operator.index(value)
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}.")
    return number


def _state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, extra: Mapping[str, object]
) -> dict[str, object]:
    state: dict[str, object] = {"model": model.state_dict()}
    if optimizer is not None:
        state["optimizer"] = optimizer.state_dict()
        state["kind of optimizer"] = {
            "class": type(optimizer).__qualname__,
            "options": sorted(getattr(optimizer, "defaults", ())),
        }
    state["random"] = {"cpu": torch.get_rng_state(), "jax": torch.jax.get_rng_state()}  # type: ignore[attr-defined]  # registered by jaxtorch
    state["extra"] = {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in extra.items()}
    return state


def _load(
    state: Mapping[str, Tree],
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    extra: MutableMapping[str, object],
) -> None:
    loaded, random = state["model"], state["random"]
    assert isinstance(loaded, dict)
    assert isinstance(random, dict)
    model.load_state_dict(loaded)
    if optimizer is not None:
        groups = state["optimizer"]
        assert isinstance(groups, dict)
        optimizer.load_state_dict(groups)
    stored = state["extra"]
    assert isinstance(stored, dict)
    for name, value in stored.items():
        target = extra.get(name)
        if isinstance(target, Stateful):
            target.load_state_dict(value)
        else:
            extra[name] = value
    torch.set_rng_state(random["cpu"])
    torch.jax.set_rng_state(random["jax"])  # type: ignore[attr-defined]  # registered by jaxtorch


def _mismatches(
    live: Mapping[str, object],
    stored: Mapping[str, Tree],
    optimizer: torch.optim.Optimizer | None,
) -> list[str]:
    """Why a checkpoint does not match the live objects, in words."""
    wrong = differences("the model", live["model"], stored["model"])
    if optimizer is not None:
        wrong += _other_groups(live["optimizer"], stored["optimizer"])
        wrong += _other_kind(live["kind of optimizer"], stored["kind of optimizer"])
    here, there = live["extra"], stored["extra"]
    assert isinstance(here, dict)
    assert isinstance(there, dict)
    lacking = [name for name in here if name not in there]
    return wrong + [f"the checkpoint has no extra {name!r}" for name in lacking]


def _other_groups(live: object, stored: Tree) -> list[str]:
    if stored is None:
        return ["the checkpoint was saved without an optimizer"]
    counts = []
    for state in (live, stored):
        assert isinstance(state, dict)
        counts.append([len(group["params"]) for group in state["param_groups"]])
    if counts[0] == counts[1]:
        return []
    return [
        f"the checkpoint's optimizer has groups of {counts[1]} parameters, but this one has groups of {counts[0]}"
    ]


def _other_kind(live: object, stored: Tree) -> list[str]:
    """A class by itself says little: it may have been renamed. Its options may change with the version of torch."""
    if stored is None:  # saved without an optimizer, or by an earlier version
        return []
    assert isinstance(live, dict)
    assert isinstance(stored, dict)
    if any(live[key] == stored[key] for key in ("class", "options")):
        return []
    return [f"its optimizer is of the class {stored['class']}, but this one is {live['class']}"]


def _shardings(
    stored: Mapping[str, Tree],
    live: Mapping[str, object],
    optimizer: torch.optim.Optimizer | None,
) -> dict[str, tuple[StoredTensor, Where]]:
    """The sharding with which each stored array is read: that of the live tensor at its path. State that the first step
    has yet to create gets the sharding of its parameter."""
    tensors = tensors_of(live)
    parameters = [p for g in optimizer.param_groups for p in g["params"]] if optimizer else []
    shardings: dict[str, tuple[StoredTensor, Where]] = {}
    for path, slot in slots(stored):
        tensor = tensors.get(path)
        if tensor is None and path.startswith("optimizer.state."):
            parameter = parameters[int(path.split(".")[2])]
            tensor = parameter if tuple(parameter.shape) == slot.size else None
        if tensor is None:
            sharding = placement.current() if slot.device == "jax" else None
        else:
            sharding = sharding_of(tensor) if tensor.device.type == "jax" else None
        shardings[slot.name] = (slot, sharding)
    return shardings
