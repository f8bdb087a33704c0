"""A table's row, the front doors, and the comparison of both with the CPU's eager result.

A row is a short program in a namespace of its own, in four parts: `given` prepares the names, `code` computes `out`,
`change` alters something between two runs, and `watch` lists what else the code may have altered. `check` runs the
row twice: on the CPU, where `code` runs as plain Python, and on the jax device, where it runs through a front door. On
both sides `code` runs twice (the second run of a captured program is a cached one), then `change`, then `code` twice
more. After each run `out` and everything in `watch` must be equal on both sides.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import copy
import importlib
import io
import itertools
import linecache
import os
import random
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from torch.utils import _pytree as pytree
from traitlets.config import Config

import jaxtorch
from jaxtorch.capture.errors import CaptureError

# The front doors: the ways to capture code. "eager" captures nothing: it says whether the row itself is right.
CELLS = ("%%pure", "%%jit")
FUNCTIONS = ("pure", "jit", "compile")
DOORS = ("eager", *CELLS, *FUNCTIONS, "pure method")
PURE = ("eager", "%%pure", "pure", "compile")  # the results have gradients
JIT = ("eager", "%%jit", "jit")  # the code may write, and call backward
WRITES = (*JIT, "compile")
METHOD = ("eager", "pure method")  # the decorator is in `given`
CAPTURES = ("eager", *CELLS, "pure", "jit")  # ours alone, without Dynamo

PRELUDE = """
import torch
from torch import nn
import torch.nn.functional as F
x = torch.tensor([0.5, 1.0, -2.0, 3.0])
"""


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Args:
        id: the test's name.
        given: source that sets the names up. It also finds `x` (a tensor of four elements), `dev` ("jax" or "cpu"),
            `folder` (an empty folder on `sys.path`), `filled` and `pure` (see below).
        code: statements that set `out`. Names that they assign beside it are globals, where `given` has them.
        change: source, or several; the code runs twice after each.
        args: the names that a captured function takes as arguments (a cell reads them by name).
        watch: expressions that are compared after each run too.
        grads: tensors, as the source of a tuple: `out.sum().backward()` must give them the CPU's gradients.
        doors: where the row applies.
        allowed: None: every run must be right. "refused": or raise a CaptureError. "never": some run must raise one
            (torch.compile, which can leave code to Python, may be right too). "warned": the first run must warn or
            raise one; what it gives is then not compared.
        undo: source that runs at the end, whatever happened: it gives ambient state back.
        stale_in_dynamo: torch's own compiler misses the change (door "dynamo"), so that ours behind it cannot see it.
    """

    id: str
    given: str
    code: str
    change: str | tuple[str, ...]
    args: str = "x"
    watch: tuple[str, ...] = ()
    grads: str = ""
    doors: tuple[str, ...] = DOORS[:-1]
    allowed: str | None = None
    undo: str = ""
    stale_in_dynamo: bool = False

    def applies(self, door: str) -> bool:
        """Whether the row goes through a door."""
        return door in self.doors and not (door == "compile" and self.stale_in_dynamo)

    def code_at(self, door: str) -> str:
        """The code that is captured: with the backward pass where its results have no gradient."""
        code = textwrap.dedent(self.code).strip()
        if self.grads and door in JIT and door != "eager":
            code = self._reset() + code + "\n" + _BACKWARD
        return code

    def after(self, door: str) -> str:
        """What runs eagerly after the code."""
        if not self.grads or (door in JIT and door != "eager"):
            return ""
        return self._reset() + _BACKWARD.replace("()\n", "(retain_graph=True)\n")

    def _reset(self) -> str:
        return f"for leaf in ({self.grads}):\n    leaf.grad = None\n"

    def watched(self) -> tuple[str, ...]:
        """The expressions to compare beside `out`."""
        grads = (f"[leaf.grad for leaf in ({self.grads})]",) if self.grads else ()
        return self.watch + grads


_BACKWARD = "if out.requires_grad:\n    out.sum().backward()\n"


class Disagreement(AssertionError):
    """A door gave something else than the CPU."""


def filled(module: nn.Module, by: float = 1.0) -> nn.Module:
    """The module with parameters that are the same on every device."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            numbers = torch.arange(p.numel(), dtype=torch.float64, device="cpu").reshape(p.shape)
            p.copy_((by * torch.sin(numbers + i)).to(p.dtype))
    return module


# -- where a row runs -----------------------------------------------------------------------------------------------


class Script:
    """A namespace as a Python module's: `code` is the body of a function, which a decorator captures."""

    _numbers = itertools.count()

    def __init__(self, row: Row, door: str, folder: Path, device: str):
        self._row, self._door, self._folder, self._device = row, door, folder, device
        self._module = types.ModuleType("the_users_script")
        sys.modules[self._module.__name__] = self._module
        self.names = vars(self._module)
        self._call: Callable[..., Any] | None = None

    def run(self, source: str) -> None:
        """Run source unchanged."""
        source = textwrap.dedent(source)
        file = str(self._folder / f"script{next(self._numbers)}.py")
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), self.names)

    def code(self) -> None:
        """Run the captured code, and set `out`."""
        if self._call is None:
            self.run(self._function())
            function = self.names.pop("code_of_row")
            self._call = _CAPTURE[self._door](function)
        self.names["out"] = self._call(*[self.names[name] for name in self._arguments()])
        self.run(self._row.after(self._door))

    def _arguments(self) -> list[str]:
        return [name.strip() for name in self._row.args.split(",") if name.strip()]

    def _function(self) -> str:
        code = self._row.code_at(self._door)
        stored = {
            node.id
            for node in _of_this_scope(ast.parse(code))
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        shared = sorted((stored & self.names.keys()) - {*self._arguments(), "out"})
        lines = [f"global {', '.join(shared)}"] if shared else []
        body = textwrap.indent("\n".join([*lines, code, "return out"]), "    ")
        return f"def code_of_row({', '.join(self._arguments())}):\n{body}\n"

    def close(self) -> None:
        """Nothing to do."""


class Notebook:
    """A namespace as a notebook's: `code` is a cell under a magic."""

    def __init__(self, row: Row, door: str, folder: Path, device: str):
        config = Config()
        config.HistoryManager.enabled = False
        self._row, self._door = row, door
        self._shell = InteractiveShell(config=config)
        self._shell.run_line_magic("load_ext", "jaxtorch")
        self.names = self._shell.user_ns
        self.run("%jax on")

    def run(self, source: str) -> None:
        """Run a cell without the magic."""
        with contextlib.redirect_stdout(io.StringIO()):
            result = self._shell.run_cell(textwrap.dedent(source), store_history=False)
        result.raise_error()

    def code(self) -> None:
        """Run the cell under its magic."""
        self.run(f"{self._door}\n{self._row.code_at(self._door)}")
        if after := self._row.after(self._door):
            self.run(after)

    def close(self) -> None:
        """Give the session's settings back."""
        self.run("%jax off")
        self._shell.run_line_magic("unload_ext", "jaxtorch")
        atexit.unregister(self._shell.atexit_operations)  # a second each, for hundreds of shells


def _compiled(backend: str) -> Callable[..., Any]:
    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        return torch.compile(function, backend=backend)

    return compiled


_CAPTURE: dict[str, Callable[..., Any]] = {
    "eager": lambda function: function,
    "pure": jaxtorch.pure,
    "jit": jaxtorch.jit,
    "pure method": lambda function: function,
    "compile": _compiled("jax"),
    # Not one of our front doors: torch's own compiler on the CPU, to distinguish its faults from those of "compile".
    "dynamo": _compiled("eager"),
}


def _of_this_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes outside of functions, classes and comprehensions."""
    for child in ast.iter_child_nodes(node):
        yield child
        inner = ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.ListComp | ast.GeneratorExp
        if not isinstance(child, inner | ast.DictComp | ast.SetComp):
            yield from _of_this_scope(child)


@contextlib.contextmanager
def _ambient(folder: Path, device: str) -> Iterator[None]:
    """Tensors are made on a device; every setting of the process is what it was, at the end."""
    modules, path, environment = dict(sys.modules), list(sys.path), dict(os.environ)
    bytecode, dtype = sys.dont_write_bytecode, torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    hooks = {
        name: copy.copy(value)
        for name, value in vars(nn.modules.module).items()
        if name.startswith("_global_") and isinstance(value, dict)
    }
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # a file's time is in whole seconds there
    importlib.invalidate_caches()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    try:
        torch.set_default_device(device)
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(True)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic)
        for name, value in hooks.items():
            own = vars(nn.modules.module)[name]
            own.clear()
            own.update(value)
        sys.dont_write_bytecode, sys.path[:] = bytecode, path
        os.environ.clear()
        os.environ.update(environment)
        for name in sys.modules.keys() - modules.keys():
            # A library stays: importing it again would give other classes.
            file = getattr(sys.modules[name], "__file__", None)
            if file is None or file.startswith(str(folder)):
                del sys.modules[name]
        sys.modules["__main__"] = modules["__main__"]


# -- runs and their comparison ----------------------------------------------------------------------------------------


def check(row: Row, door: str, folder: Path) -> str:
    """Run a row through a door beside the CPU. Raises where they differ; returns "same", "refused" or "warned"."""
    expected = list(_runs(row, None, folder / "cpu"))
    # torch.compile may leave a part of the code to Python: then nothing has to be refused.
    allowed = row.allowed if door not in ("eager", "compile") else None
    with contextlib.closing(_runs(row, door, folder / "jax")) as runs:
        for when, theirs, _ in expected:
            try:
                _, ours, warned = next(runs)
            except Exception as error:
                if row.allowed is not None and door != "eager" and _refusal(error):
                    return "refused"
                raise
            if allowed == "warned":
                if not warned:
                    raise Disagreement("the first run neither warned nor raised a CaptureError")
                return "warned"
            if allowed != "never":
                _compare(when, ours, theirs)
    if allowed == "never":
        raise Disagreement("no run raised a CaptureError")
    return "same"


def _runs(row: Row, door: str | None, folder: Path) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """After each run: its description, what `out` and the watched expressions are, and whether it warned."""
    folder.mkdir()
    device = "cpu" if door in (None, "dynamo") else "jax"
    changes = (row.change,) if isinstance(row.change, str) else row.change
    with _ambient(folder, device):
        kind = Notebook if door in CELLS else Script
        place = kind(row, door or "eager", folder, device)
        try:
            given = {"dev": device, "folder": folder, "filled": filled}
            given["pure"] = jaxtorch.pure if door not in (None, "eager") else lambda f: f
            place.names.update(given)
            place.run(PRELUDE + textwrap.dedent(row.given))
            for i, change in enumerate(["", *changes]):
                place.run(change)
                for run in ("first", "second"):
                    with warnings.catch_warnings(record=True) as said:
                        warnings.simplefilter("always")
                        place.code()
                    when = f"{run} run" + (f" after change {i}" if i else "")
                    yield when, _seen(row, place.names), bool(said)
        finally:
            try:
                if row.undo:
                    place.run(row.undo)
            finally:
                place.close()


def _seen(row: Row, names: dict[str, Any]) -> dict[str, Any]:
    found = {"out": names["out"]} | {e: eval(e, names) for e in row.watched()}
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().cpu().clone(), found)


def _compare(when: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, expected in theirs.items():
        found = ours[name]
        one, its_form = pytree.tree_flatten(found)
        other, form = pytree.tree_flatten(expected)
        same = its_form == form and all(map(_same, one, other))
        if not same:
            raise Disagreement(f"{when}: {name} is {found}, and on the CPU {expected}")


def _same(ours: Any, theirs: Any) -> bool:
    if type(ours) is not type(theirs):
        return False
    if not isinstance(ours, torch.Tensor):
        return bool(ours == theirs) or ours != ours
    try:
        torch.testing.assert_close(ours, theirs, equal_nan=True)
    except AssertionError:
        return False
    return True


def _refusal(error: BaseException | None) -> bool:
    """Whether an error is a CaptureError, or Dynamo's around one."""
    while error is not None:
        if isinstance(error, CaptureError):
            return True
        error = getattr(error, "inner_exception", None) or error.__cause__
    return False
