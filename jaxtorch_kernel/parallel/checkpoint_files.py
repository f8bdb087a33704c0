"""Checkpoints as files, by Orbax: folders, steps, arrays and outlines.

Orbax is imported when it is used: it is optional, and takes half a second.
"""

from __future__ import annotations

import base64
import os
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    """Orbax's manager of a folder, which is created. It is reused: a second one would delete files that the first is
    still writing.

    Raises:
        OSError: the folder cannot be created.
    """
    import orbax.checkpoint as ocp

    known = _managers.get(str(folder))
    if known is not None and known[0] == keep and folder.is_dir():
        return known[1]
    if known is not None:
        _closed(str(folder))
    with _naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # A thread that fails to create a folder would let the others, and the end of the program, wait for minutes.
    created_first = ocp.options.AsyncOptions(create_directories_asynchronously=False)
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, async_options=created_first)
    manager = ocp.CheckpointManager(folder, options=options, item_names=_ITEMS)
    _managers[str(folder)] = (keep, manager)
    return manager


@contextmanager
def _naming(folder: epath.Path) -> Iterator[None]:
    """Name the folder of the run in an error of the file system.

    Raises:
        OSError: of the class of the error.
    """
    try:
        yield
    except OSError as error:
        kind = NotADirectoryError if isinstance(error, FileExistsError) else type(error)
        reason = "it is a file" if folder.is_file() else error.strerror or str(error)
        raise kind(f"{folder} cannot be the folder of a run: {reason}.") from None


def _closed(folder: str) -> None:
    """Close the manager of a folder, and forget it."""
    with suppress(Exception):  # what it could not write was reported
        _managers.pop(folder)[1].close()


def finished(manager: ocp.CheckpointManager, folder: epath.Path, *, wait: bool) -> None:
    """Check that earlier checkpoints were written, after waiting for the last one if `wait`.

    Raises:
        RuntimeError: one could not be written.
    """
    try:
        if wait:
            manager.wait_until_finished()
        manager.check_for_errors()
    except Exception as error:
        raise RuntimeError(
            f"a checkpoint in {folder} could not be written: {_shortened(error)}"
        ) from None


def _shortened(error: Exception) -> str:
    """The beginning of an error's text: that of Orbax names each file on its way with the positions in its sources."""
    return textwrap.shorten(str(error).partition("[source locations")[0], 300, placeholder=" ...")


def existing(folder: epath.Path) -> ocp.CheckpointManager:
    import orbax.checkpoint as ocp

    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file, not the folder of a run.")
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
    manager: ocp.CheckpointManager,
    folder: epath.Path,
    step: int,
    arrays: Mapping[str, Array],
    outline: str,
) -> None:
    """Copy the values of a checkpoint and begin to write it.

    Raises:
        OSError: its folder cannot be created.
    """
    import orbax.checkpoint as ocp

    items = ocp.args.Composite(
        arrays=ocp.args.PyTreeSave(dict(arrays)), outline=ocp.args.JsonSave({"outline": outline})
    )
    try:
        with _naming(folder), jax.enable_x64(True):
            manager.save(step, args=items, force=True)
    except Exception:
        _closed(str(folder))  # it would take itself to be saving forever
        raise


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
    manager: ocp.CheckpointManager,
    folder: epath.Path,
    step: int,
    targets: Mapping[str, tuple[StoredTensor, Where]],
) -> dict[str, Array]:
    """The arrays of a checkpoint, each with its sharding.

    Raises:
        RuntimeError: they cannot be read.
    """
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
    request = ocp.args.PyTreeRestore(
        item=dict.fromkeys(arguments, 0), restore_args=arguments, partial_restore=True
    )
    try:
        with jax.enable_x64(True):
            item = manager.restore(step, args=ocp.args.Composite(arrays=request))
    except Exception as error:
        raise RuntimeError(
            f"the checkpoint of step {step} in {folder} cannot be read, its files may be damaged: {_shortened(error)}"
        ) from None
    return dict(item.arrays)


def report(manager: ocp.CheckpointManager, step: int, nbytes: int) -> None:
    """Report a checkpoint while it is being written; a notebook shows its progress as it does for compilations."""
    with phase(f"of step {step}, {nbytes / 1e6:,.1f} MB", "checkpoint"):
        while _is_open(manager) and manager.is_saving_in_progress():
            time.sleep(0.05)


def _is_open(manager: ocp.CheckpointManager) -> bool:
    return any(manager is each for _, each in list(_managers.values()))


def finish() -> None:
    """Finish the checkpoints that are being written. All processes take part, so none may disconnect before."""
    for _, manager in _managers.values():
        with suppress(Exception):  # the program is ending; the previous checkpoint is complete
            manager.close()
    _managers.clear()


# `atexit` would be too late: by then Python has closed the thread pools in which Orbax writes.
threading._register_atexit(finish)  # type: ignore[attr-defined]  # as the standard library's pools do
