"""The persistent compile cache: on by request, put back afterwards, and a second process compiles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import jaxtorch
from jaxtorch.base.compile_cache import compile_cache

PROGRAM = """
import jax, torch, jaxtorch
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jaxtorch.config.update(compile_cache=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to("jax")
optimizer = torch.optim.AdamW(model.parameters())
x = torch.ones(3, 4, device="jax")
model(x).sum().backward()
optimizer.step()
jaxtorch.pure(lambda x: model(x).sin())(x)
print(events.count("/jax/compilation_cache/cache_misses"), events.count("/jax/compilation_cache/cache_hits"))
"""


STEP = """
import os, torch, jaxtorch
from torch import nn
from jaxtorch.insight import events
from jaxtorch.programs import stats
events.start()
jaxtorch.config.update(compile_cache=True)
optimizer_of = {
    "AdamW": lambda p: torch.optim.AdamW(p),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
}
garbage = [object() for _ in range(int(os.environ["PYTHONHASHSEED"]) * 1000)]  # other addresses
del garbage[::3]
for name, make in optimizer_of.items():
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 2)
    model = nn.Sequential(*layers).to("jax")
    optimizer = make(model.parameters())
    @jaxtorch.jit(name=f"step_{name}")
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss
    for _ in range(3):
        step(torch.ones(3, 4, device="jax"))
print(",".join(r.name for r in stats.compiled if not r.persistent_hit))
"""


def run(folder: Path) -> tuple[int, int]:
    environment = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    environment |= {"XDG_CACHE_HOME": str(folder), "JAX_PLATFORMS": "cpu"}
    out = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    misses, hits = map(int, out.stdout.split())
    return misses, hits


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    misses, _ = run(tmp_path)
    assert misses > 5
    assert any((tmp_path / "jaxtorch").iterdir())
    again, hits = run(tmp_path)
    assert again == 0
    assert hits >= misses


def test_the_programs_of_steps_are_the_same_in_every_process(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    missed = [
        subprocess.run(
            [sys.executable, "-c", STEP],
            env=environment | {"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in range(3)
    ]
    # Only the step whose first call differs from the later ones is compiled twice.
    steps = [name for name in missed[0].split(",") if name.startswith("step_")]
    assert steps == ["step_AdamW", "step_SGD", "step_dampened", "step_dampened"]
    assert missed[1:] == ["", ""]


NAMES = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def test_what_was_set_is_put_back() -> None:
    before = {name: getattr(jax.config, name) for name in NAMES}
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        free = {name: getattr(jax.config, name) for name in NAMES}
        compile_cache.on("a test")
        assert jax.config.jax_compilation_cache_dir.endswith("jaxtorch")
        compile_cache.on("another")
        compile_cache.off("a test")
        assert jax.config.jax_compilation_cache_dir is not None
        compile_cache.off("another")
        assert {name: getattr(jax.config, name) for name in NAMES} == free
        # The user's own stays.
        jax.config.update("jax_compilation_cache_dir", "/tmp/mine")
        compile_cache.on("a test")
        assert jax.config.jax_compilation_cache_dir == "/tmp/mine"
        compile_cache.off("a test")
        assert jax.config.jax_compilation_cache_dir == "/tmp/mine"
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_wrong_value_is_refused() -> None:
    with pytest.raises(ValueError, match="compile_cache"):
        jaxtorch.config.update(compile_cache="yes")
