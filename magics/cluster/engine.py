"""The code that runs in each process of a cluster: its start, and its cells. The session calls it by ipyparallel."""

from __future__ import annotations

import os
import socket
import threading
import time
from argparse import Namespace
from contextlib import suppress

import jax
from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from jaxtorch.parallel import processes
from jaxtorch.parallel.launchers import Rendezvous

from ..runnable import runnable
from ..subcommands.table import Invocation

_WATCH = 1.0  # seconds between two looks at the session's process


def address() -> str:
    """A free port of this machine, for JAX's coordinator: "host:port"."""
    with socket.socket() as one:
        one.bind(("", 0))
        port = one.getsockname()[1]
    return f"{socket.gethostname()}:{port}"


def join(rank: int, size: int, coordinator: str) -> tuple[str, int, str]:
    """Make this process one of `size`, and load the extension in its shell.

    The environment is that of `torchrun`, so a script that reads it works in a cell too.

    Returns:
        The name of the machine, the process's id, and its devices in words.
    """
    host, _, port = coordinator.rpartition(":")
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=host, MASTER_PORT=port, LOCAL_RANK="0"
    )
    if (
        not processes.is_initialized()
    ):  # the session watches the processes, so they do not watch each other
        processes.join(
            Rendezvous(coordinator, size, rank, None), timeout=120, heartbeat_timeout=100
        )
    processes.barrier()  # the lines of gloo's first connection end here
    _shell().run_line_magic("load_ext", "jaxtorch")
    devices = jax.local_devices()
    return socket.gethostname(), os.getpid(), f"{len(devices)} × {devices[0].device_kind}"


def settle() -> None:
    """Run a collective of all processes. It does not end if one of them waits in another."""
    processes.barrier("jaxtorch.settle")


def watch(session: int, others: list[int]) -> None:
    """End these processes and this one when the session's process has ended, even by kill -9."""
    import psutil  # comes with ipyparallel

    def look() -> None:
        while psutil.pid_exists(session):  # not a child of this process, so it cannot be waited for
            time.sleep(_WATCH)
        for pid in [*others, os.getpid()]:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()

    threading.Thread(target=look, name="jaxtorch-cluster-watch", daemon=True).start()


def run(head: str, body: str, number: int) -> object:
    """Run a cell's body as the notebook would have: with its number and its lines in tracebacks.

    Args:
        head: the line of the magic, without `%%jax`.
        body: the text below it.
        number: the cell's number in the notebook.
    """
    shell = _shell()
    running = shell.displayhook.exec_result
    if running is not None:
        running.execution_count = number
    return runnable(Invocation(shell, Namespace(statement=""), body, head)).run()


def _shell() -> InteractiveShell:
    shell = get_ipython()
    assert shell is not None
    return shell
