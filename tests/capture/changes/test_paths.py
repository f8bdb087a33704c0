"""A sample of the paths, or all of them (`make thorough`), through `pure` and `jit`."""

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
from jaxtorch.capture.errors import CaptureError

from .paths import GIVEN, PRELUDE, Path, Write, paths, writes

_NAME = "the_users_script"
_PARTS = 16
_ALL = os.environ.get("JAXTORCH_TESTS") == "all"
_EVERY = 1 if _ALL else 80

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def script() -> Iterator[None]:
    yield
    sys.modules.pop(_NAME, None)


def _names(device: str, *sources: str) -> dict[str, Any]:
    """What a script defines."""
    module = types.ModuleType(_NAME)
    sys.modules[_NAME] = module
    names = vars(module)
    names["dev"] = device
    for source in (PRELUDE, GIVEN, *sources):
        file = f"/home/user/{_NAME}{next(_numbers)}.py"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), names)
    return names


def _run(path: Path, capture: Any, device: str, level: str) -> list[Any]:
    """What the program gives before a change, and after it."""
    names = _names(device, path.given, f"def code(x):\n    return {path.code}\n")
    code = capture(names["code"])
    x = torch.tensor([1.0, 2.0], device=device)
    results = [code(x).tolist(), code(x).tolist()]
    alive = [names["v"]]  # `given` holds the leaves
    exec(path.changes[level], names)
    results.append(code(x).tolist())
    del alive
    return results


def _write(write: Write, capture: Any, device: str) -> list[Any]:
    """The program's results, and the value at the end of the path, after each of six runs."""
    names = _names(device, write.given, f"def code(x):\n    {write.code}\n    return out\n")
    code = capture(names["code"])
    names["x"] = torch.tensor([1.0, 2.0], device=device)
    results = []
    for i in range(6):
        if i == 3:
            exec(write.change, names)
        results.append((code(names["x"]).tolist(), _shown(eval(write.read, names))))
    return results


def _shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return list(map(_shown, value))
    return vars(value) if type(value).__name__ == "Thing" else value


_READS, _WRITES = list(paths()), list(writes())
random.Random(0).shuffle(_READS)
random.Random(0).shuffle(_WRITES)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_change_at_each_level_of_a_path_is_seen(part: int, capture: Any) -> None:
    wrong = []
    for name, path in _READS[part :: _PARTS * _EVERY]:
        for level in path.changes:
            expected = _run(path, lambda function: function, "cpu", level)
            found = _run(path, capture, "jax", level)
            if found != expected:
                wrong.append(f"{name}, another {level}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_PARTS if _ALL else 4))  # half a minute each
@pytest.mark.parametrize("capture", [jaxtorch.pure, jaxtorch.jit])
def test_a_write_at_the_end_of_a_path_happens_at_each_run(part: int, capture: Any) -> None:
    """Or it is refused."""
    wrong, refused = [], 0
    chosen = _WRITES[part :: _PARTS * _EVERY]
    for name, write in chosen:
        expected = _write(write, lambda function: function, "cpu")
        try:
            found = _write(write, capture, "jax")
        except CaptureError:
            refused += 1
            continue
        if found != expected:
            wrong.append(f"{name}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)
    assert refused < len(chosen)
