"""A training run that resumes from its last checkpoint. Arguments: the folder, the last step, and the step at which the
last process is killed (0: none)."""

from __future__ import annotations

import os
import signal
import sys

import torch
from torch import nn

import jaxtorch

jaxtorch.distributed.initialize()
FOLDER, LAST, DEATH = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RANK, SIZE = jaxtorch.distributed.rank(), jaxtorch.distributed.world_size()
MESH = jaxtorch.mesh(-1, "data")


def run() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4)).jax()
    jaxtorch.fsdp(net, MESH)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    done = 0
    if os.path.isdir(FOLDER):
        done = jaxtorch.restore_checkpoint(FOLDER, net, optimizer)
        print("resumed", done, flush=True)
    for step in range(done + 1, LAST + 1):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
        part = jaxtorch.from_local(x.tensor_split(SIZE)[RANK], "data", MESH)
        optimizer.zero_grad()
        loss = net(part).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", step, repr(loss.item()), flush=True)
        if step == DEATH and RANK == SIZE - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % 2 == 0:
            jaxtorch.save_checkpoint(FOLDER, net, optimizer, step, wait=step == DEATH - 1)


if __name__ == "__main__":
    run()
    jaxtorch.distributed.shutdown()
