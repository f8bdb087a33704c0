"""Several processes: `jaxtorch.distributed` over `jax.distributed`.

Each process runs the same program, and JAX joins their devices: `jax.devices()` are those of all processes, and a mesh
of them spans the processes. Every process must call every operation on such a mesh, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.experimental import multihost_utils

from ..base import jax_private
from . import checkpoint_files
from .launchers import Rendezvous, completed
from .peers import Peers

_peers: Peers | None = None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    timeout: int = 300,
    heartbeat_timeout: int = 20,
) -> None:
    """Join this process with the others of its run. Call it before the first use of the jax device.

    Under `torchrun`, the defaults come from MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE and LOCAL_RANK. JAX detects
    SLURM, Open MPI, Kubernetes (GKE) and TPU pods. Arguments take precedence. A second call does nothing.

    On CPUs, processes exchange data by gloo, unless `jax_cpu_collectives_implementation` is already set.

    If a process dies, the others exit within a few seconds, with code 1 and one line that names it.

    Args:
        coordinator_address: "host:port" at which process 0 will listen.
        num_processes: the number of processes.
        process_id: the rank of this process, from 0.
        local_device_ids: the devices of this machine to use, by default those of LOCAL_RANK or all.
        timeout: seconds to wait for the other processes.
        heartbeat_timeout: seconds without a sign of life after which a machine counts as dead.

    Raises:
        RuntimeError: JAX has already started its devices; no launcher was found; some variables are missing; a process
            did not connect in time.
        ValueError: `process_id` is not below `num_processes`, or a variable is not a number.

    Example:
        >>> import jaxtorch
        >>> jaxtorch.distributed.initialize("localhost:29400", num_processes=2, process_id=0)  # doctest: +SKIP
        >>> jaxtorch.distributed.rank(), jaxtorch.distributed.world_size()  # doctest: +SKIP
        (0, 2)

    See https://docs.jax.dev/en/latest/multi_process.html
    """
    if is_initialized():
        return
    given = [local_device_ids] if isinstance(local_device_ids, int) else local_device_ids
    where = completed(
        Rendezvous(coordinator_address, num_processes, process_id, list(given) if given else None),
        timeout,
    )
    join(where, timeout, heartbeat_timeout)
    _watch_peers(timeout)


def join(where: Rendezvous, timeout: int, heartbeat_timeout: int) -> None:
    """Join this process with the others, without the watch that ends it when another one dies."""
    if jax.config.jax_cpu_collectives_implementation in (None, "none"):  # type: ignore[attr-defined]  # made at import
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            where.coordinator_address,
            where.num_processes,
            where.process_id,
            where.local_device_ids,
            initialization_timeout=timeout,
            heartbeat_timeout_seconds=heartbeat_timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise _explained(error, where, timeout) from None


def _explained(error: Exception, where: Rendezvous, timeout: int) -> RuntimeError:
    """JAX's error, reworded to say what to do instead."""
    if "before any JAX calls" in str(error):
        return RuntimeError(
            "jaxtorch.distributed.initialize() must come before the first use of the jax device: JAX has already "
            "started the devices of this process alone. Call it at the top of the program."
        )
    if not where.complete and "defined" in str(error):
        return RuntimeError(
            "jaxtorch.distributed.initialize() found no launcher: start the program with torchrun or srun, or pass "
            "coordinator_address, num_processes and process_id."
        )
    if "DEADLINE_EXCEEDED" in str(error):
        return RuntimeError(
            f"not all {where.num_processes} processes connected to {where.coordinator_address} within {timeout} s: "
            "check that each was started and can reach that address."
        )
    return RuntimeError(f"jaxtorch.distributed.initialize(): {error}")


def _watch_peers(timeout: int) -> None:
    """Connect with the other processes, at an address that process 0 puts into JAX's store."""
    global _peers
    state = jax_private.distributed_state()
    if state is None or world_size() == 1:
        return
    peers = Peers(rank(), world_size(), jax.distributed.shutdown)
    key, host = "jaxtorch/peers", str(state.coordinator_address).rsplit(":", 1)[0]
    if rank() == 0:
        state.client.key_value_set(key, str(peers.listen()))
    else:
        port = state.client.blocking_key_value_get(key, timeout * 1000)
        peers.connect(host.strip("[]"), int(port), timeout)
    _peers = peers


def is_initialized() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized()


def rank() -> int:
    """The rank of this process, from 0; 0 without other processes.

    Example:
        >>> import jaxtorch
        >>> jaxtorch.distributed.rank()
        0
    """
    state = jax_private.distributed_state()
    return jax.process_index() if state is None else int(state.process_id)


def world_size() -> int:
    """The number of processes; 1 without other processes.

    Example:
        >>> import jaxtorch
        >>> jaxtorch.distributed.world_size()
        1
    """
    state = jax_private.distributed_state()
    return jax.process_count() if state is None else int(state.num_processes)


def barrier(name: str = "jaxtorch.barrier") -> None:
    """Wait until every process has reached this call and has finished its work on the device.

    Args:
        name: a name of the barrier, the same in all processes.
    """
    if world_size() > 1:
        multihost_utils.sync_global_devices(name)


def shutdown() -> None:
    """Disconnect from the other processes, after the last checkpoint is written.

    It waits until they disconnect too. The end of the program calls it.
    """
    global _peers
    checkpoint_files.finish()
    if _peers is None:
        jax.distributed.shutdown()
    else:
        _peers.close()
        _peers = None
