"""Processes that are killed, refused a folder, or end while they save a checkpoint."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import jaxtorch

Tensor = torch.Tensor
Build = Callable[[], nn.Module]


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
