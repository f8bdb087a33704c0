"""Starts a program in several processes, as torchrun would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxtorch.parallel.launchers import free_port

HERE = Path(__file__).parent


@dataclass
class Ended:
    """How a process ended: its exit code, its output with its errors, and the seconds from the start of all."""

    code: int
    output: str
    seconds: float


def launch(
    program: str, size: int, *arguments: object, devices: int = 1, limit: float = 120
) -> list[Ended]:
    """Run a program of this folder in `size` processes, each with its own `devices`, and wait for their ends."""
    port = free_port()
    outputs = []
    processes = []
    start = time.monotonic()
    for rank in range(size):
        environ: Mapping[str, str] = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(devices),
            "PYTHONUNBUFFERED": "1",
        }
        command = [
            sys.executable,
            "-m",
            f"tests.sharding.processes.{program}",
            *map(str, arguments),
        ]
        process = subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
    for process in processes:
        try:
            output, _ = process.communicate(timeout=limit - (time.monotonic() - start))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            output = process.communicate()[0] + f"\n(killed after {limit} s)"
        outputs.append(Ended(process.returncode, output, time.monotonic() - start))
    return outputs


def succeed(ended: list[Ended]) -> list[str]:
    """The output of each process, all of which must have ended well."""
    for rank, one in enumerate(ended):
        assert one.code == 0, f"process {rank} ended with {one.code}:\n{one.output[-8000:]}"
    return [one.output for one in ended]
