"""Cold starts: construction and first steps in fresh processes, in seconds of the processor.

A cold start mostly consists of compilations. The persistent cache is off, except in the last comparison, which
restarts a process and runs the same code again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from .harness import Row

Stages = dict[str, dict[str, Any]]


def rows() -> Iterator[Row | str]:
    """The first operators of a process, and one row for each goal."""
    yield _first_operators()
    for model in ("ResNet-18", "GPT-2 small", "ViT-B"):
        yield from _construction(model)
    references = {model: _run(model, "JAX") for model in ("GPT", "ResNet-18")}
    for model, limit in (("GPT", 0.25), ("ResNet-18", 1.0)):
        eager, deferred = _run(model, "eager"), _run(model, "deferred")
        yield _row(f"first eager step, {model}", eager, references[model], ["first step"], limit)
        # What is deferred while the model is constructed runs in the first step.
        stages = ["construct", "first step"]
        yield _row(f"first deferred step, {model}", deferred, eager, stages, 1.05, "eager")
    for model in ("GPT", "ResNet-18"):
        ours = _run(model, "jit")
        stages = ["first step", "second step"]
        yield _row(f"first two jit steps, {model}", ours, references[model], stages, 0.6)
    yield from _restarted("GPT")


# Seconds of the processor from the start of the process. torch is imported on both sides: it is half of the time.
_OURS = "x = torch.ones(2, device='jax'); (x * 2 + 1).sum().item()"
_THEIRS = "import jax.numpy as jnp; x = jnp.ones(2); (x * 2 + 1).sum().item()"


def _first_operators() -> Row:
    seconds = {}
    for name, code in {"jaxtorch": _OURS, "JAX": _THEIRS}.items():
        program = f"import time, torch; {code}; print(time.process_time())"
        done = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        seconds[name] = float(done.stdout)
    return Row("first operators, with imports", seconds, against="JAX")


def _construction(model: str) -> Iterator[Row | str]:
    try:
        ours, cpu = _run(model, "eager", only=True), _run(model, "torch CPU", only=True)
    except subprocess.CalledProcessError as error:
        yield f"{model} was not constructed: {error.stderr.strip().splitlines()[-1]}"
        return
    programs = ours["construct"]["programs"]
    random = sum(name == "random bits" for name in programs)
    seconds = {"jaxtorch": ours["construct"]["cpu"], "torch CPU": cpu["construct"]["cpu"]}
    goal = 1.5 * seconds["torch CPU"] + 2
    yield Row(f"construct {model}", seconds)
    yield (
        f"{'':28} goal: at most {goal:.2f} s. {len(programs)} programs, {random} of them with random "
        "bits (goal: at most 8)"
    )


def _row(
    name: str,
    ours: Stages,
    theirs: Stages,
    stages: list[str],
    limit: float | None,
    other: str = "JAX",
) -> Row:
    seconds = {
        key: sum(result[stage]["cpu"] for stage in stages)
        for key, result in (("jaxtorch", ours), (other, theirs))
    }
    return Row(name, seconds, limit, other)


def _restarted(model: str) -> Iterator[Row | str]:
    """The third run of the same code beside the first; then its steps alone, beside those of JAX's third run."""
    third: dict[str, Stages] = {}
    for way in ("jit", "JAX"):
        with tempfile.TemporaryDirectory() as folder:
            runs = [_run(model, way, cache=folder) for _ in range(3)]
        third[way] = runs[-1]
        seconds = {"third run": _sum(runs[2]), "first run": _sum(runs[0])}
        limit = 0.2 if way == "jit" else None
        yield Row(f"restart and run all, {model}, {way}", seconds, limit, "first run")
    stages = ["first step", "second step"]
    yield _row(f"steps after a restart, {model}", third["jit"], third["JAX"], stages, None)


def _sum(stages: Stages) -> float:
    seconds: float = sum(stage["cpu"] for stage in stages.values())
    return seconds


def _run(model: str, way: str, cache: str | None = None, only: bool = False) -> Stages:
    """The stages of a case, run in a fresh process.

    Args:
        cache: folder of the persistent cache; by default there is none.
        only: construct the model, and nothing more.
    """
    environment = dict(os.environ, JAX_ENABLE_COMPILATION_CACHE="true" if cache else "false")
    if cache:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    command = [
        sys.executable,
        "-m",
        "benchmarks.cold_case",
        model,
        way,
        *(["only"] if only else []),
    ]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])
