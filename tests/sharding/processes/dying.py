"""One of several processes dies while the others compute with it, or wait."""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import torch
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxtorch

if __name__ == "__main__":
    how = sys.argv[1]
    jaxtorch.distributed.initialize()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    x = jaxtorch.from_local(torch.ones(2), P("data"), mesh)
    print("sum", x.sum().item(), flush=True)
    last = jaxtorch.distributed.rank() == jaxtorch.distributed.world_size() - 1
    if last and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if last and how == "raises":
        raise ValueError("a mistake")
    while jaxtorch.distributed.rank() == 1:
        time.sleep(1)  # works for itself
    while True:  # waits for the dead
        x.sum().item()
