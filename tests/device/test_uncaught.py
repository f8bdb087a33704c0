"""What a script prints of an error that it does not catch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

import jaxtorch
from jaxtorch.device import uncaught


def script(capsys: pytest.CaptureFixture[str], run: Callable[[], object]) -> str:
    """What a script prints of an error that it does not catch."""
    try:
        run()
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    return capsys.readouterr().err


def test_a_script_prints_no_frame_of_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    uncaught.install()
    x, model = torch.ones(5, 4, device="jax"), torch.nn.Linear(4, 2, device="jax")
    run = lambda: model(torch.ones(5, 4))  # noqa: E731
    shown = script(capsys, run)
    files = re.findall(r'File "(.+?)", line', shown)
    assert [f.rpartition("site-packages/")[2] for f in files] == [
        __file__,
        __file__,
        "torch/nn/modules/linear.py",
    ]
    assert "During handling" not in shown
    assert shown.splitlines()[-1].startswith(
        "RuntimeError: Expected all tensors to be on the same device"
    )
    try:
        jaxtorch.config.update(tracebacks="full")
        assert script(capsys, run).count("/jaxtorch/") > 2
    finally:
        jaxtorch.config.update(tracebacks="short")
    model.cpu()
    theirs = script(capsys, lambda: model(x.cpu().T))
    assert "_call_impl" in theirs  # an error of the CPU is Python's to print


SCRIPT = """
import torch, jaxtorch
x = torch.zeros(2, dtype=torch.bool, device="jax")
y = torch.zeros(2, device="jax")
try:
    {line}
except RuntimeError as error:
    error.add_note("in the third round")
    print(len(error.__notes__))
    raise
"""


@pytest.mark.parametrize("line", ["x - y", "jaxtorch.pure(lambda x: x - y)(x)"])
def test_a_script_prints_no_note_about_the_frames_of_jax(line: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(line=line)], capture_output=True, text=True
    )
    assert run.stdout == "2\n"  # JAX has added a note
    *_, message, note = run.stderr.splitlines()
    assert message.startswith("RuntimeError: Subtraction")
    assert note == "in the third round"


def test_another_hook_for_uncaught_errors_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(*args: object) -> None: ...

    monkeypatch.setattr(sys, "excepthook", mine)
    uncaught.install()
    assert sys.excepthook is mine
