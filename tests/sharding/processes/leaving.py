"""Leaves the other processes, by a call or at the end of the program, and prints which of our threads are left then.

Arguments: how, and the seconds between the ends of two processes.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time

import torch

import jaxtorch

HOW, SECONDS = sys.argv[1], float(sys.argv[2])


def report() -> None:
    names = [t.name for t in threading.enumerate() if t.name.startswith("jaxtorch-")]
    print("left", *names, flush=True)


atexit.register(report)  # runs after what is registered later
jaxtorch.distributed.initialize()
x = jaxtorch.shard(torch.ones(4), "data", jaxtorch.mesh(-1, "data"))
print("sum", x.sum().item(), flush=True)
time.sleep(SECONDS * jaxtorch.distributed.rank())
if HOW == "shutdown":
    jaxtorch.distributed.shutdown()
    report()
    time.sleep(SECONDS * jaxtorch.distributed.rank())
