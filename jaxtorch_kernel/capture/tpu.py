"""Compiles for TPUs on machines without a TPU: libtpu, in a separate process.

In a process with libtpu but no TPU, JAX starts slowly and with errors, so only the compiling process (`tpu_worker.py`)
has libtpu on its path. Starting it takes seconds, so one process stays for all programs of the session (`shared`).

Requests and answers travel over a pair of sockets, not through files: a full disk loses nothing, and the end of either
process is seen by the other at once. libtpu cannot be interrupted while it compiles. So a compilation is cancelled by
killing the process, and the next request starts a new one. The process is in a session of its own, where Ctrl-C in a
terminal and a notebook's interrupt do not reach it.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NamedTuple

from .tpu_worker import Description, Protos

_WORKER = Path(__file__).with_name("tpu_worker.py")
_LIBTPU = "0.0.51"  # the version that was tested with jax 0.10.2
_EXIT_SECONDS = 5.0  # that a process may take to end after its connection has closed


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
    folder = Path(os.environ.get("JAXTORCH_LIBTPU") or cache / "jaxtorch" / "libtpu").expanduser()
    if (folder / "libtpu").is_dir():
        return folder.absolute()
    if sys.platform != "linux":
        raise CompileError(
            "compiling for a TPU needs its compiler, libtpu, which is available only for Linux"
        )
    raise CompileError(
        f"compiling for a TPU needs its compiler, libtpu, which is not in {folder}. Install it there, where no other "
        f"process finds it (600 MB): pip install --no-deps --target {folder} libtpu=={_LIBTPU} "
        "(or set JAXTORCH_LIBTPU to the folder that holds it)"
    )


def libtpu_version() -> str | None:
    """The version of libtpu that the compiling process gets; None if it is not installed or does not say it."""
    try:
        folder = libtpu_folder()
    except CompileError:
        return None
    path = sys.path if folder is None else [str(folder)]
    found = importlib.metadata.distributions(name="libtpu", path=path)
    return next((one.version for one in found), None)


def _other_version() -> str:
    """What an error adds if libtpu has another version than the one that was tried."""
    version = libtpu_version()
    if version == _LIBTPU:
        return ""
    have = (
        "the installed libtpu does not say its version"
        if version is None
        else f"libtpu {version} is installed"
    )
    return f" ({have}; {_LIBTPU} was tried with this jax)"


class Request(NamedTuple):
    """A program to compile.

    Attributes:
        program: a serialized `jax.export.Exported`.
        target: a TPU topology such as "v5e:4x4".
        donated: the inputs whose memory the program may reuse.
        mesh: the names and sizes of the mesh's axes; None for a program of one chip.
        names: of its inputs.
    """

    program: bytes
    target: str
    donated: list[int]
    mesh: dict[str, int] | None = None
    names: tuple[str, ...] = ()


class _Process(NamedTuple):
    """A compiling process, and what it is reached by."""

    process: subprocess.Popen[bytes]
    connection: Connection
    log: IO[bytes] | None  # what it writes; None if no file could be made

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()
        if self.log is not None:
            self.log.close()


class Compiler:
    """A process that compiles for TPUs, one program after the other.

    The process starts with the first program. If a program crashes it, it restarts for the next.

    Args:
        worker: the script that it runs.
    """

    def __init__(self, worker: Path = _WORKER):
        self._worker = worker
        self._running: _Process | None = None
        self._serving: Request | None = None
        self._cancelled: Request | None = None
        self._lock = threading.Lock()

    @property
    def process(self) -> int | None:
        """The id of the process; None while there is none."""
        running = self._running
        return None if running is None else running.process.pid

    def compile(self, request: Request) -> tuple[Description, Protos]:
        """A program compiled for its target: `tpu_worker.describe`'s figures, and its serialized forms.

        Raises:
            CompileError: if libtpu rejects it or exits.
        """
        with self._lock:
            if self._running is None or self._running.process.poll() is not None:
                self._stop()
                self._running = self._start()
            running = self._running
            start = _size(running.log)
            self._serving = request  # from here on, `cancel` kills the process
            try:
                if self._cancelled is request:
                    raise CompileError(f"the compiler for {request.target} was cancelled")
                running.connection.send(tuple(request))
                answer, failure = running.connection.recv()
            except (EOFError, OSError):  # it ended
                reason = _last_words(running, start)
                self._stop()
                raise CompileError(f"the compiler for {request.target} {reason}") from None
            except BaseException:
                # Such as Ctrl-C: a late answer must not be taken for the next program's.
                self._stop()
                raise
            finally:
                self._serving = None
        if failure is not None:
            raise CompileError(
                f"the compiler for {request.target} failed: {failure}{_other_version()}"
            )
        figures, serialized = answer
        return figures, Protos(*serialized)

    def cancel(self, request: Request) -> None:
        """Make the `compile` of this request raise CompileError. If it is being compiled, the process ends."""
        self._cancelled = request
        if self._serving is request:
            self._kill()

    def close(self) -> None:
        """End the process. The next program starts a new one."""
        # Another thread may hold the lock and wait for an answer, or be starting the process.
        self._kill()
        while not self._lock.acquire(timeout=0.05):
            self._kill()
        try:
            self._stop()
        finally:
            self._lock.release()

    def _kill(self) -> None:
        running = self._running
        if running is not None:
            running.process.kill()

    def _start(self) -> _Process:
        folder = libtpu_folder()
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_WORKER_HOSTNAMES": "localhost",
            # libtpu allows one process for each TPU. There is none here.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_LOG_DIR": "disabled",  # it would write files into the folder for temporary ones
            # The cache ignores names in its keys: the HLO could show the names of another program.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "XLA_FLAGS": _without_other_backends(os.environ.get("XLA_FLAGS", "")),
        }
        if folder is not None:
            paths = [str(folder), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        try:
            log: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115  # the process writes to it
        except OSError:  # a full disk, or no folder for temporary files: crashes are reported without libtpu's words
            log = None
        ours, theirs = Pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", str(self._worker), str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log or subprocess.DEVNULL,
                stderr=log or subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            raise CompileError(f"the compiler could not be started: {error}") from None
        finally:
            theirs.close()
        return _Process(process, ours, log)

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end()

    def forget(self) -> None:
        """Let go of the process without ending it: in a forked process, where it belongs to the parent."""
        running, self._running, self._lock = self._running, None, threading.Lock()
        if running is not None:
            running.process.returncode = 0  # not our child: nobody waits for it here
            running.connection.close()


def _without_other_backends(flags: str) -> str:
    """`XLA_FLAGS` without those of CPUs and GPUs: libtpu ends the process at a flag that it does not know."""
    return re.sub(r"\s*--xla_(cpu|gpu)_\S*", "", flags).strip()


def _size(log: IO[bytes] | None) -> int:
    return 0 if log is None else os.fstat(log.fileno()).st_size


def _last_words(running: _Process, start: int) -> str:
    """How the process ended, and the error in its log from `start` on, in one line."""
    try:
        status = running.process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        running.process.kill()
        running.process.wait()
        return "ended the connection without an answer"
    text = b"" if running.log is None else os.pread(running.log.fileno(), 1 << 20, start)
    lines = [n for n in text.decode(errors="replace").splitlines() if n.strip()]
    errors = [n for n in lines if re.match(r"F\d{4} |[\w.]*(Error|Exception)\b", n)]
    others = [n for n in lines if n[0] not in "-WI @" and "WARNING" not in n]
    if status == -signal.SIGKILL:
        return "was killed (SIGKILL): the machine may have run out of memory"
    how = f"ended with status {status}" if status >= 0 else f"ended by {_name(-status)}"
    return how + "".join(f": {line}" for line in (errors or others)[-1:])


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


shared = Compiler()  # of this process


@contextmanager
def shared_compiler() -> Iterator[None]:
    """End the compiling process at the end of a block. It takes 0.4 GB when idle, up to 2 GB for a large program."""
    try:
        yield
    finally:
        shared.close()


atexit.register(shared.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.forget)
