"""What a captured program becomes: its jaxpr, its StableHLO, XLA's optimized HLO with costs and memory.

For this machine's device, or for a TPU that is not there: libtpu, the TPU's own compiler, needs no TPU. It runs in a
process of its own (`tpu_worker.py`), because a process that has libtpu and no TPU starts JAX slowly, and one at a time,
because libtpu aborts where another process holds it.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jax import export

from ..interop.compiled import Compiled
from .tpu_worker import describe

_WORKER = Path(__file__).with_name("tpu_worker.py")
_LIBTPU = "libtpu==0.0.51"  # what jax 0.10.2 was tried with
_TARGET = re.compile(r"(v\d+\w*|tpu\w+):\d+(x\d+)*")


class CompileError(RuntimeError):
    """A program that the compiler of a target refused, or a target without its compiler. The message says which."""


class Lowered:
    """A captured program before it is compiled. Made by `pure(function).lower(...)`.

    Args:
        function: a JAX function of arrays.
        avals: shapes and dtypes of its arguments.
        name: what the program is called.
        target: a TPU topology such as "v5e:1x1", or None for this machine's device.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        avals: Sequence[jax.ShapeDtypeStruct],
        name: str,
        target: str | None = None,
    ):
        if target is not None and not _TARGET.fullmatch(target):
            raise ValueError(f"a target is a TPU and its chips, such as 'v5e:1x1', not {target!r}")
        self.target = target
        # The devices of this machine are no part of a program for another.
        self._avals = (
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals] if target else list(avals)
        )

        def program(*operands: Any) -> Any:
            return function(*operands)

        program.__name__ = program.__qualname__ = name
        self._jitted = jax.jit(program)
        with jax.enable_x64(True):
            self._traced = self._jitted.trace(*self._avals)

    @property
    def jaxpr(self) -> Any:
        """JAX's own form of the program, a `jax.core.ClosedJaxpr`."""
        return self._traced.jaxpr

    @cached_property
    def _lowered(self) -> Any:
        with jax.enable_x64(True):
            return self._traced.lower(lowering_platforms=("tpu",) if self.target else None)

    @property
    def stablehlo(self) -> str:
        """What is handed to XLA, as text."""
        return str(self._lowered.as_text())

    def compile(self) -> Executable:
        """Compile it with XLA.

        Raises:
            CompileError: the target's compiler refuses the program, or is not installed.
        """
        if self.target is not None:
            return Executable(**_compile_elsewhere(self._serialized(), self.target))
        with jax.enable_x64(True):
            compiled = self._lowered.compile()
        return Executable(**describe(compiled, jax.local_devices()[0]))

    def _serialized(self) -> bytes:
        # JAX refuses custom calls that another version of XLA might not know. It is the same version here.
        calls = set(re.findall(r"custom_call @([\w.$]+)", self.stablehlo))
        checks = [export.DisabledSafetyCheck.custom_call(name) for name in calls]
        with jax.enable_x64(True):
            exported = export.export(self._jitted, platforms=("tpu",), disabled_checks=checks)(
                *self._avals
            )
            return bytes(exported.serialize())


class Executable:
    """A compiled program's text and figures.

    Attributes:
        hlo: XLA's optimized HLO. Names of modules and `record_function` blocks are in its metadata.
        device: the kind of device that it is for.
    """

    def __init__(self, hlo: str, costs: dict[str, float], memory: dict[str, int], device: str):
        self.hlo, self.device = hlo, device
        self._costs, self._memory = costs, memory

    def cost_analysis(self) -> dict[str, float]:
        """XLA's own estimates: "flops", "bytes accessed", ... The body of a loop counts once."""
        return dict(self._costs)

    def memory_analysis(self) -> dict[str, int]:
        """Sizes in bytes: of arguments, outputs, temporaries and code."""
        return dict(self._memory)


def forward_of(compiled: Compiled, target: str | None) -> Lowered:
    """The forward program of a captured signature."""

    def forward(*arrays: Any) -> list[Any]:
        outputs, others = compiled.function(*arrays)
        return [*outputs, *others]

    return Lowered(forward, compiled.avals, compiled.name, target)


def with_gradients_of(compiled: Compiled, target: str | None) -> Lowered:
    """Forward and backward as one program: of all inputs and the cotangents, to the outputs and the gradients."""
    if not compiled.inputs:
        raise ValueError(
            "nothing here requires a gradient: call lower outside of torch.no_grad(), with a tensor or parameter "
            "that does"
        )
    count = len(compiled.avals)

    def both(*operands: Any) -> tuple[list[Any], list[Any]]:
        arrays, cotangents = operands[:count], operands[count:]
        primals = [arrays[i] for i in compiled.inputs]
        outputs, pullback, others = jax.vjp(compiled.of_inputs(arrays), *primals, has_aux=True)
        return [*outputs, *others], pullback(list(cotangents))

    with jax.enable_x64(True):
        outputs, _ = jax.eval_shape(compiled.function, *compiled.avals)
    cotangents = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in outputs]
    return Lowered(both, [*compiled.avals, *cotangents], compiled.name, target)


# -- the TPU's compiler -------------------------------------------------------------------------------------------


def libtpu_folder() -> Path | None:
    """Where libtpu is for the compiling process: None where it is installed for every process.

    Raises:
        CompileError: nowhere.
    """
    if importlib.util.find_spec("libtpu") is not None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(os.environ.get("JAXTORCH_LIBTPU") or cache / "jaxtorch" / "libtpu")
    if (folder / "libtpu").is_dir():
        return folder.absolute()
    raise CompileError(
        f"compiling for a TPU takes its compiler, libtpu, and there is none in {folder}. Install it there, where no "
        f"other process finds it (600 MB):\n    pip install --no-deps --target {folder} {_LIBTPU}\n"
        "or set JAXTORCH_LIBTPU to the folder that holds it."
    )


@contextmanager
def _alone() -> Iterator[None]:
    """Hold while libtpu runs: other processes that compile this way wait."""
    with open(Path(tempfile.gettempdir()) / f"jaxtorch-libtpu-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile_elsewhere(program: bytes, target: str) -> dict[str, Any]:
    folder = libtpu_folder()
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        # Its key leaves names out, and the text would show those of whoever came first.
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    if folder is not None:
        paths = [str(folder), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as place, _alone():
        source, result = Path(place) / "program", Path(place) / "result.json"
        source.write_bytes(program)
        done = subprocess.run(
            [sys.executable, "-P", str(_WORKER), target, str(source), str(result)],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode or not result.exists():
            raise CompileError(f"the compiler for {target} failed: {_reason(done)}")
        return dict(json.loads(result.read_text()))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """The error in what the compiler wrote."""
    lines = [line for line in done.stderr.splitlines() if line.strip() and line[0] not in "-WI "]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return "\n".join(errors[-1:] or lines[-5:]) or f"it ended with {done.returncode}"
