"""Compiles for TPUs on machines without a TPU: libtpu, in a separate process.

In a process with libtpu but no TPU, JAX starts slowly and with errors, so only the compiling process (`tpu_worker.py`)
has libtpu on its path. Starting that process takes seconds: `shared_compiler` uses one process for many programs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .tpu_worker import Description

_WORKER = Path(__file__).with_name("tpu_worker.py")
_LIBTPU = "libtpu==0.0.51"  # the version that was tested with jax 0.10.2


class CompileError(RuntimeError):
    """Raised if the compiler of a target rejects a program or is not installed. The message says which."""


def libtpu_folder() -> Path | None:
    """The folder of libtpu for the compiling process; None if it is installed for every process.

    Raises:
        CompileError: if it is not installed.
    """
    if importlib.util.find_spec("libtpu") is not None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = Path(os.environ.get("JAXTORCH_LIBTPU") or cache / "jaxtorch" / "libtpu")
    if (folder / "libtpu").is_dir():
        return folder.absolute()
    raise CompileError(
        f"compiling for a TPU needs its compiler, libtpu, which is not in {folder}. Install it there, where no other "
        f"process finds it (600 MB):\n    pip install --no-deps --target {folder} {_LIBTPU}\n"
        "or set JAXTORCH_LIBTPU to the folder that holds it."
    )


class Compiler:
    """A process that compiles for TPUs, one program after the other.

    The process starts with the first program. If a program crashes it, it restarts for the next.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        self._lock = threading.Lock()

    def compile(self, program: bytes, target: str) -> Description:
        """A serialized `jax.export.Exported` compiled for a target: `tpu_worker.describe`'s figures.

        Raises:
            CompileError: if libtpu rejects it or exits.
        """
        source, result = (Path(self._folder.name) / name for name in ("program", "result"))
        with self._lock:
            process = self._process = self._process or self._start()
            source.write_bytes(program)
            written = self._log.stat().st_size
            try:
                answered = self._ask(process, [target, str(source), str(result)])
            except (
                BaseException
            ):  # such as Ctrl-C: a late answer must not be taken for the next program's
                self._stop()
                raise
            if not answered:
                self._stop()
                raise CompileError(
                    f"the compiler for {target} failed: {self._end(process, written)}"
                )
            answer = json.loads(result.read_text())
        if "error" in answer:
            raise CompileError(f"the compiler for {target} failed: {answer['error']}")
        description: Description = answer
        return description

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()
            self._folder.cleanup()

    def _ask(self, process: subprocess.Popen[str], request: list[str]) -> bool:
        """Whether the process answered before it ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return False
        # libtpu may write to standard output too.
        return any(line == "compiled\n" for line in process.stdout)

    def _start(self) -> subprocess.Popen[str]:
        folder = libtpu_folder()
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            # libtpu allows one process for each TPU. There is none here.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            # The cache ignores names in its keys: the HLO could show the names of another program.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
        }
        if folder is not None:
            paths = [str(folder), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with self._log.open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _end(self, process: subprocess.Popen[str], start: int) -> str:
        """The exit status of the process, and the error in its log from `start` on."""
        text = self._log.read_bytes()[start:].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and line[0] not in "-WI @"]
        errors = [line for line in lines if re.match(r"F\d{4} |[\w.]*(Error|Exception)\b", line)]
        message = "\n".join(errors[-1:] or lines[-5:])
        return f"it ended with {process.returncode}" + (f": {message}" if message else "")


_shared: Compiler | None = None


@contextmanager
def shared_compiler() -> Iterator[None]:
    """Context in which one process compiles all programs for TPUs, instead of one process for each program."""
    global _shared
    outer, _shared = _shared, _shared or Compiler()
    try:
        yield
    finally:
        inner, _shared = _shared, outer
        if inner is not outer:
            inner.close()


def compile_elsewhere(program: bytes, target: str) -> Description:
    """As `Compiler.compile`, by the shared process or by one for this program alone."""
    with shared_compiler():
        assert _shared is not None
        return _shared.compile(program, target)
