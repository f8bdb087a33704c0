"""What a launcher passes to each process: the coordinator's address, the number of processes, and this one's rank.

`torchrun` sets MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and LOCAL_RANK, which a user may also set by hand. They are
read here. SLURM, Open MPI, Kubernetes and TPU pods are detected by JAX.

The agent of `torchrun` keeps a store of its own at MASTER_PORT, so JAX's coordinator cannot listen there. Process 0
then takes a free port, and publishes it in that store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

_TORCH = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


@dataclass(frozen=True)
class Rendezvous:
    """The address, size and rank of a process in its run. JAX detects the values that are None.

    Attributes:
        coordinator_address: "host:port", at which process 0 listens.
        num_processes: how many processes there are.
        process_id: which of them this is, from 0.
        local_device_ids: the devices of this machine that the process uses.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: list[int] | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to detect."""
        return None not in (self.coordinator_address, self.num_processes, self.process_id)


def completed(
    given: Rendezvous, timeout: int, environ: Mapping[str, str] = os.environ
) -> Rendezvous:
    """The given values, completed from the variables of `torchrun`.

    Args:
        given: what the user passed.
        timeout: seconds to wait for process 0 to publish its port.
        environ: the environment variables.

    Raises:
        RuntimeError: the environment has some of the variables, and others are missing.
        ValueError: a variable or an argument is not the rank of a process.
    """
    if not given.complete:
        given = _from_torch(given, timeout, environ)
    rank, size = given.process_id, given.num_processes
    if rank is not None and size is not None and not 0 <= rank < size:
        raise ValueError(
            f"process_id is {rank}, but with num_processes={size} it must be from 0 to {size - 1}."
        )
    return given


def _from_torch(given: Rendezvous, timeout: int, environ: Mapping[str, str]) -> Rendezvous:
    values = {
        "MASTER_ADDR": given.coordinator_address,
        "MASTER_PORT": given.coordinator_address,
        "RANK": given.process_id,
        "WORLD_SIZE": given.num_processes,
    }
    present = [name for name in _TORCH if environ.get(name)]
    if not present:
        return given
    missing = [name for name in _TORCH if name not in present and values[name] is None]
    if missing:
        raise RuntimeError(
            f"the environment has {', '.join(present)}, but not {', '.join(missing)}: set all four as torchrun does, "
            "or pass coordinator_address, num_processes and process_id."
        )
    rank = given.process_id if given.process_id is not None else _number(environ, "RANK")
    size = (
        given.num_processes if given.num_processes is not None else _number(environ, "WORLD_SIZE")
    )
    address = given.coordinator_address
    if address is None:
        host, port = environ["MASTER_ADDR"], _number(environ, "MASTER_PORT")
        if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            port = _agreed_port(host, port, rank, timeout, environ)
        address = f"{host}:{port}"
    local = given.local_device_ids
    if local is None:
        local = _local_device(environ)
    return replace(
        given,
        coordinator_address=address,
        num_processes=size,
        process_id=rank,
        local_device_ids=local,
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be an integer, but it is {environ[name]!r}.") from None


def _local_device(environ: Mapping[str, str]) -> list[int] | None:
    """The GPU of a process that shares its machine with others, unless the launcher has already hidden their GPUs."""
    if int(environ.get("LOCAL_WORLD_SIZE") or 1) == 1 or not environ.get("LOCAL_RANK"):
        return None
    visible = environ.get("CUDA_VISIBLE_DEVICES") or environ.get("ROCR_VISIBLE_DEVICES")
    if visible is not None and "," not in visible:
        return None
    return [_number(environ, "LOCAL_RANK")]


def _agreed_port(host: str, port: int, rank: int, timeout: int, environ: Mapping[str, str]) -> int:
    """A free port chosen by process 0, from the store of torchrun's agent. Each restart has its own."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, but not in its __all__

    store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout))
    key = f"jaxtorch/coordinator/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if rank == 0:
        store.set(key, str(free_port()))
    return int(store.get(key))


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        number: int = probe.getsockname()[1]
        return number
