"""Two hundred interrupts at random moments of a process that runs eager and captured training steps.

An interrupt may lose the step that it interrupts, but nothing else. After each interrupt, every parameter and all state
of the optimizer must be readable and finite, and the next steps must run. The soak fails if this does not hold, or if
the process ends or hangs.
"""

from __future__ import annotations

import random
import selectors
import signal
import subprocess
import sys
import time

from .soak import Progress

INTERRUPTS = 200
PATIENCE = 120.0  # seconds without output from the process before it counts as hung

CHILD = r"""
import sys, torch, jaxtorch
torch.manual_seed(0)
layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2)
model = torch.nn.Sequential(*layers).to("jax")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8, device="jax")).square().mean()
    loss.backward()
    optimizer.step()
    return loss

captured, count = jaxtorch.jit(step), 0

def check():
    for p in model.parameters():
        assert torch.isfinite(p.detach().cpu()).all()
        for value in optimizer.state[p].values():
            if isinstance(value, torch.Tensor):
                assert torch.isfinite(value.cpu()).all()

step(), captured()
while True:
    try:
        print("running", flush=True)
        while True:
            for kind in (step, captured):
                kind()
                count += 1
                torch.ones(count % 5 + 1, device="jax").mul_(2).sum().item()
    except KeyboardInterrupt:
        pass
    while True:
        try:
            check()
            print("sound", count, flush=True)
            break
        except KeyboardInterrupt:
            pass
"""


def run(scale: float = 1.0) -> None:
    """Run the soak. `scale` is the fraction of the two hundred interrupts."""
    count = max(1, int(INTERRUPTS * scale))
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    progress = Progress("interrupts", count)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # a selector does not see data that waits in a buffer of this process
    ) as child:
        try:
            steps = 0
            for done in range(1, count + 1):
                _wait_for(child, "running")
                time.sleep(draw.expovariate(1 / 0.2))
                child.send_signal(signal.SIGINT)
                steps = int(_wait_for(child, "sound").split()[1])
                progress.at(done)
            print(f"{steps} steps beside {count} interrupts")
        finally:
            child.kill()


def _wait_for(child: subprocess.Popen[bytes], word: str) -> str:
    """The next line that begins with this word."""
    assert child.stdout is not None
    assert child.stderr is not None
    selector = selectors.DefaultSelector()
    selector.register(child.stdout, selectors.EVENT_READ)
    while True:
        assert selector.select(PATIENCE), f"the process said nothing for {PATIENCE:.0f} s"
        line = child.stdout.readline().decode()
        assert line, f"the process ended:\n{child.stderr.read().decode()}"
        if line.startswith(word):
            return line
