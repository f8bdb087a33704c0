"""Compiles the module of `native/`: once for each version of its source, of torch and of Python.

It is one call of a compiler. `torch.utils.cpp_extension` would do it too, but it needs ninja and half a second to be
imported, and it cannot work in the background.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from pathlib import Path

import torch

from ..base.compile_cache import directory
from ..base.program_files import refusal

_SOURCES = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_INCLUDES = (_TORCH / "include", _TORCH / "include/torch/csrc/api/include")
_LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")
_FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# A compilation takes a quarter of a minute. One that began so many seconds ago no longer runs.
_STALE = 600
# Compiles to `$0.part`, and names it `$0` if that succeeds. Whoever started the shell does not wait for it.
_IN_BACKGROUND = """(
    if "$@" 2> "$0.log"; then mv -f "$0.part" "$0"; else mv -f "$0.log" "$0.failed"; fi
    rm -f "$0.lock" "$0.log"
) &"""


def target() -> Path:
    """Where the compiled module is or will be."""
    digest = hashlib.sha256()
    for source in sorted((*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp"))):
        digest.update(source.read_bytes())
    library = os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else None
    versions = (torch.__version__, sys.version, platform.machine(), library, _FLAGS)
    digest.update(repr(versions).encode())
    folder = os.environ.get("JAXTORCH_NATIVE_FOLDER") or directory() / "native"
    return Path(folder) / f"calls-{digest.hexdigest()[:16]}.so"


def failure(path: Path) -> Path:
    """The file with the compiler's messages, if it failed in the background."""
    return Path(f"{path}.failed")


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, or the system's."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def missing() -> str | None:
    """What the module cannot be compiled without, and how to get it; None if everything is there."""
    if sys.platform != "linux":
        return "it was tried on Linux only"
    if compiler() is None:
        return "there is no C++ compiler: install g++, or set CXX to one"
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").exists():
        return f"{include} has no Python.h: install python3-dev"
    return None


def command(output: Path) -> list[str]:
    """The call of the compiler."""
    include = sysconfig.get_path("include")
    return [
        *shlex.split(compiler() or "c++"),
        *_FLAGS,
        str(_SOURCES / "module.cpp"),
        "-o",
        str(output),
        *(f"-I{folder}" for folder in (*_INCLUDES, include)),
        f"-L{_TORCH / 'lib'}",
        *(f"-l{name}" for name in _LIBRARIES),
    ]


def build() -> Path:
    """Compile the module now, unless it is compiled.

    Raises:
        RuntimeError: something is missing, or the compiler failed; the message has what it printed.
    """
    path = target()
    if path.exists():
        return path
    if why := missing() or refusal(path.parent):
        raise RuntimeError(why)
    part = path.with_suffix(f".{os.getpid()}.part")
    result = subprocess.run(command(part), capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"the C++ compiler failed:\n{result.stderr}")
    part.replace(path)
    return path


def start() -> None:
    """Start to compile the module in the background, at the lowest priority, unless that was tried before."""
    path = target()
    lock = Path(f"{path}.lock")
    with suppress(OSError):  # another process compiles it, or there is no shell
        if failure(path).exists():
            return
        if lock.exists() and time.time() - lock.stat().st_mtime > _STALE:
            lock.unlink()
        lock.touch(exist_ok=False)
        arguments = [str(path), "nice", "-n", "19", *command(Path(f"{path}.part"))]
        nothing = subprocess.DEVNULL
        subprocess.run(
            ["sh", "-c", _IN_BACKGROUND, *arguments],
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
            check=False,
        )
