"""The cost of the profile of a long run: time to analyse and draw it, and memory.

The run is 1,500 training steps of the third notebook's GPT under `jit`, in a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

from jaxtorch.insight.profile import profile
from jaxtorch.widgets.profile import ProfileView

from .attribution import _run, gpt, session

_STEPS = 1500
_JIT = "import jaxtorch\n@jaxtorch.jit\ndef train():\n{body}\n    return loss\n"


def rows() -> Iterator[str]:
    """One line."""
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.profiles"], check=True, capture_output=True, text=True
    )
    found = json.loads(process.stdout.splitlines()[-1])
    run, analysis = found["run"], found["analysis"]
    yield (
        f"{_STEPS} jit steps of {gpt().name}: {run:.1f} s, {found['recorded']:.1f} s of it recorded; "
        f"analysed and drawn in {analysis:.1f} s (goal: at most {run / 2 + 3:.1f}), "
        f"{found['memory'] / 1e9:.2f} GB more at the peak (goal: at most 1)"
    )


def _case() -> dict[str, float]:
    model = gpt()
    with session(model) as shell:
        body = "\n".join(f"    {line}" for line in model.step.splitlines())
        _run(shell, _JIT.format(body=body))
        train = shell.user_ns["train"]
        for _ in range(3):
            train().item()
        before = _peak_memory()
        began = time.perf_counter()
        found = profile(lambda: [train() for _ in range(_STEPS)])
        view = ProfileView(found, "train")
        view.html()
        json.dumps(view.data())
        whole = time.perf_counter() - began
        recording = found.recording
        if recording.error is not None:
            raise recording.error
        run = recording.total / 1e9
        return {
            "run": run,
            "recorded": recording.recorded / 1e9,
            "analysis": whole - run,
            "memory": _peak_memory() - before,
        }


def _peak_memory() -> float:
    """The most memory that this process had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


if __name__ == "__main__":
    print(json.dumps(_case()))
