"""Checkpoints as files, by Orbax: folders, steps, arrays and outlines.

Orbax is imported when it is used: it is optional, and takes half a second.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import jax
import numpy as np

from ..programs.compiling import phase
from .training_state import Array, StoredTensor, Tree, from_bytes

if TYPE_CHECKING:
    import orbax.checkpoint as ocp
    from etils import epath

Where = jax.sharding.Sharding | None  # None: a CPU tensor

_ITEMS = ("arrays", "outline")
_managers: dict[str, tuple[int | None, ocp.CheckpointManager]] = {}  # by folder, with its `keep`


def _orbax() -> None:
    try:
        import orbax.checkpoint  # noqa: F401  # only whether it is there
    except ImportError:
        raise ImportError(
            "checkpoints are written by Orbax, which is not installed: pip install orbax-checkpoint"
        ) from None


def folder_of(path: str | os.PathLike[str]) -> epath.Path:
    """The folder of a run, on this machine or in a bucket (`gs://...`)."""
    _orbax()
    from etils import epath

    return epath.Path(path if "://" in os.fspath(path) else os.path.abspath(path))


def manager_of(folder: epath.Path, keep: int | None) -> ocp.CheckpointManager:
    """Orbax's manager of a folder. It is reused: a second one would delete files that the first is still writing."""
    import orbax.checkpoint as ocp

    known = _managers.get(str(folder))
    if known is not None and known[0] == keep and folder.exists():
        return known[1]
    if known is not None:
        known[1].close()
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
    manager = ocp.CheckpointManager(folder, options=options, item_names=_ITEMS)
    _managers[str(folder)] = (keep, manager)
    return manager


def existing(folder: epath.Path) -> ocp.CheckpointManager:
    import orbax.checkpoint as ocp

    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist: no checkpoint was saved there.")
    known = _managers.get(str(folder))
    return ocp.CheckpointManager(folder, item_names=_ITEMS) if known is None else known[1]


def chosen(manager: ocp.CheckpointManager, folder: epath.Path, step: int | None) -> int:
    manager.reload()  # another process may have saved there
    steps = sorted(manager.all_steps())
    if not steps:
        raise FileNotFoundError(f"{folder} has no checkpoint.")
    if step is None:
        return int(steps[-1])
    if step not in steps:
        raise FileNotFoundError(f"{folder} has no checkpoint of step {step}: it has {steps}.")
    return step


def write(
    manager: ocp.CheckpointManager, step: int, arrays: Mapping[str, Array], outline: str
) -> None:
    import orbax.checkpoint as ocp

    with jax.enable_x64(True):
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.PyTreeSave(dict(arrays)),
                outline=ocp.args.JsonSave({"outline": outline}),
            ),
            force=True,
        )


def read_outline(manager: ocp.CheckpointManager, step: int, folder: epath.Path) -> dict[str, Tree]:
    import orbax.checkpoint as ocp

    try:
        item = manager.restore(step, args=ocp.args.Composite(outline=ocp.args.JsonRestore()))
        outline = from_bytes(base64.b64decode(item.outline["outline"]))
    except (FileNotFoundError, KeyError) as error:
        raise FileNotFoundError(f"{folder / str(step)} was not written by jaxtorch.") from error
    assert isinstance(outline, dict)
    return outline


def read_arrays(
    manager: ocp.CheckpointManager, step: int, targets: Mapping[str, tuple[StoredTensor, Where]]
) -> dict[str, Array]:
    import orbax.checkpoint as ocp

    arguments = {
        name: ocp.RestoreArgs(restore_type=np.ndarray)
        if where is None
        else ocp.ArrayRestoreArgs(sharding=where, dtype=slot.numpy_dtype, global_shape=slot.size)
        for name, (slot, where) in targets.items()
        if slot.stored
    }
    if not arguments:
        return {}
    with jax.enable_x64(True):
        item = manager.restore(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.PyTreeRestore(
                    item=dict.fromkeys(arguments, 0),
                    restore_args=arguments,
                    partial_restore=True,
                )
            ),
        )
    return dict(item.arrays)


def report(manager: ocp.CheckpointManager, step: int, nbytes: int) -> None:
    """Report a checkpoint while it is being written; a notebook shows its progress as it does for compilations."""
    with phase(f"of step {step}, {nbytes / 1e6:,.1f} MB", "checkpoint"):
        while manager.is_saving_in_progress():
            time.sleep(0.05)


def finish() -> None:
    """Finish the checkpoints that are being written. All processes take part, so none may disconnect before."""
    for _, manager in _managers.values():
        with suppress(Exception):  # the program is ending; the previous checkpoint is complete
            manager.close()
    _managers.clear()


# `atexit` would be too late: by then Python has closed the thread pools in which Orbax writes.
threading._register_atexit(finish)  # type: ignore[attr-defined]  # as the standard library's pools do
