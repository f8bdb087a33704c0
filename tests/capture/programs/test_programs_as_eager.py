"""Small programs in which something changes between two calls: captured, each gives what it gives eagerly on the CPU.

A program sets `r` to a list of results. It finds `cap`, which captures a function (or gives it back, eagerly), `x`, a
tensor of two elements, `T`, which makes a tensor, `dev` and the usual imports. What a program may be refused is said in
`REFUSED`; programs that are not right yet are in `KNOWN`, and must fail.
"""

from __future__ import annotations

import linecache
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import jaxtorch
from jaxtorch.capture.errors import CaptureError

from . import names, reads, writes

PROGRAMS = {**names.PROGRAMS, **reads.PROGRAMS, **writes.PROGRAMS}
DOORS = {"pure": jaxtorch.pure, "jit": jaxtorch.jit}
# A clear error instead of a result: through both doors, or through `pure` alone.
REFUSED = {
    "swallow item", "swallow iterator", "arg list mutated", "arg dict tensor jit", "identity lists args",
    "captured generator", "returned iter", "async", "hook lost", "prod backward",
}  # fmt: skip
REFUSED_BY_PURE = {"own optimizer", "lstm state tuple"}
# Neither right nor refused yet.
KNOWN = {
    "factory inside first": "a function of the same code that the captured code makes hides one from outside",
    "fn table identity": "two functions of one code without closures count as equal, also as keys",
    "enum mutable": "an attribute set on a member of an enum is not seen",
    "format user": "a format string's attribute of a user's object is not seen",
    "lru effect": "an effect of a function under lru_cache is repeated at each run",
    "protocol": "isinstance of a runtime Protocol asks for attributes that no bytecode names",
    "simplequeue": "a queue is taken from once",
    "returned closure": "a function that the code creates and returns is the same one at each run",
    "returned class": "a class that the code creates and returns is the same one at each run",
    "identity return": "a list that was there and is returned comes back as a copy",
    "decimal prec": "the precision of the decimal module is not watched",
    "embedding freq": "only `jit`: its results have no history, which the program wants",
}  # fmt: skip
# A warning with the line, and then the value of the trace.
WARNED = {"big list", "exists", "perf_counter_ns"}


def _shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return [round(v, 5) for v in value.detach().cpu().double().reshape(-1).tolist()]
    return [_shown(v) for v in value] if isinstance(value, list | tuple) else value


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str, Any, str], Any]]:
    """Runs a program as `__main__`, and gives what it found."""
    main = sys.modules["__main__"]
    count = iter(range(99))

    def run(source: str, cap: Any, dev: str) -> Any:
        module = types.ModuleType("__main__")
        x = torch.tensor([1.0, 2.0], device=dev)
        module.__dict__.update(
            torch=torch, nn=torch.nn, jaxtorch=jaxtorch, S=types.SimpleNamespace, cap=cap, x=x, dev=dev,
            T=lambda *v: torch.tensor(v if len(v) > 1 else v[0], device=dev),
        )  # fmt: skip
        file = str(tmp_path / f"program{next(count)}.py")
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), module.__dict__)
        return _shown(module.__dict__["r"])

    yield run
    for name in ("m", "m1", "m2", "m3"):  # that programs register
        sys.modules.pop(name, None)
    sys.modules["__main__"] = main


def _cases() -> Iterator[Any]:
    for name in PROGRAMS:
        for door in DOORS:
            known = name in KNOWN and not (name == "embedding freq" and door == "pure")
            marks = [pytest.mark.xfail(reason=KNOWN[name], strict=True)] if known else []
            yield pytest.param(name, door, id=f"{name} [{door}]", marks=marks)


def test_what_is_listed_is_a_program() -> None:
    assert {*REFUSED, *REFUSED_BY_PURE, *KNOWN, *WARNED} <= PROGRAMS.keys()


@pytest.mark.parametrize(("name", "door"), list(_cases()))
def test_a_program(run: Callable[..., Any], name: str, door: str) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        expected = run(PROGRAMS[name], lambda function: function, "cpu")
        warned.clear()
        if name in REFUSED or (door == "pure" and name in REFUSED_BY_PURE):
            with pytest.raises(CaptureError):
                run(PROGRAMS[name], DOORS[door], "jax")
            return
        found = run(PROGRAMS[name], DOORS[door], "jax")
    if name in WARNED:
        assert any("captured code" in str(w.message) for w in warned)
    else:
        assert found == expected
