"""A sample of the paths, or all of them (`make changes`), through `pure` and `jit`."""

from __future__ import annotations

import itertools
import linecache
import os
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import jaxtorch

from .paths import GIVEN, PRELUDE, Path, paths

_NAME = "the_users_script"
_PARTS = 16
_EVERY = 1 if os.environ.get("JAXTORCH_CHANGES") == "all" else 40

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    yield
    sys.modules.pop(_NAME, None)


def _run(path: Path, capture: Any, device: str, level: str) -> list[Any]:
    """What the program gives before a change, and after it."""
    module = types.ModuleType(_NAME)
    sys.modules[_NAME] = module
    names = vars(module)
    names["dev"] = device
    for source in (PRELUDE, GIVEN, path.given, f"def code(x):\n    return {path.code}\n"):
        file = f"/home/user/{_NAME}{next(_numbers)}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), names)
    code = capture(names["code"])
    x = torch.tensor([1.0, 2.0], device=device)
    results = [code(x).tolist(), code(x).tolist()]
    alive = [names["v"]]  # `given` holds the leaves
    exec(path.changes[level], names)
    results.append(code(x).tolist())
    del alive
    return results


_ALL = list(paths())
random.Random(0).shuffle(_ALL)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_change_at_each_level_of_a_path_is_seen(part: int, capture: Any) -> None:
    wrong = []
    for name, path in _ALL[part :: _PARTS * _EVERY]:
        for level in path.changes:
            expected = _run(path, lambda function: function, "cpu", level)
            found = _run(path, capture, "jax", level)
            if found != expected:
                wrong.append(f"{name}, another {level}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)
