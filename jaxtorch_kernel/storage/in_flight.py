"""How many programs may be in flight on several CPU devices of this process.

XLA's CPU client has one pool of threads for all devices, by default as many as the devices or cores. A device takes 32
programs at once: the launch of one more waits in a thread of the pool. A collective needs a thread for each device. If
too many programs are in flight, the waiting launches hold the threads that earlier programs need to finish. XLA then
ends the process ("Termination timeout for `all reduce`"), as it does for the same calls of `jax.jit`. XLA runs
programs on several devices in launch order, so we regularly wait for the latest one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ..base import jax_meshes

# Beside each counted launch there may be others: copies of arrays that are shared, placements.
MOST = 8

_count = itertools.count(1)  # of launches; a race of threads only moves the next wait


@functools.lru_cache(maxsize=64)
def bounded(where: Sharding) -> bool:
    """Whether programs on these devices must wait for each other: several CPU devices of this process."""
    local: set[jax.Device] = where.addressable_devices
    return len(local) > 1 and next(iter(local)).platform == "cpu"


def before_launch(where: Sharding) -> None:
    """Wait, once in `MOST` calls, until the programs that were launched have run.

    Args:
        where: the devices of the program that comes next.
    """
    if bounded(where) and next(_count) % MOST == 0:
        _last_program(where)().block_until_ready()


@functools.lru_cache(maxsize=64)
def _last_program(where: Sharding) -> Callable[[], jax.Array]:
    """A program that does nothing, on the devices of this process."""
    local: set[jax.Device] = where.addressable_devices
    on_each = NamedSharding(Mesh(np.array(list(local)), ("device",)), PartitionSpec())
    token = jax.device_put(np.zeros((), np.int32), on_each)
    with jax_meshes.in_context(None):  # the user's mesh may be of other devices
        program = jax.jit(jax.lax.neg).lower(token).compile()
    return functools.partial(program, token)
