"""A trainer and a rollout server take turns on one GPU. Each has most of its memory while it works.

    LD_PRELOAD=$(tms --path) python rollout.py [STEPS]
    tms run --simulate --memory 256M -- python rollout.py [STEPS]    # without a GPU and PyTorch

The trainer starts the server, which inherits LD_PRELOAD, and talks to it by two pipes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import tms

if "CUDASIM_SHARED" not in os.environ:
    import torch
else:  # under tms run --simulate
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # for python -m, too
    import simulated as torch

UNIT = torch.cuda.mem_get_info()[1] // 16  # of the device's memory: the two need 22 together


def tensor(units: int) -> torch.Tensor:
    return torch.empty((units * UNIT,), dtype=torch.uint8, device="cuda")


def trainer(steps: int) -> None:
    server = subprocess.Popen(
        [sys.executable, __file__, "server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin and server.stdout
    assert server.stdout.readline() == "ready\n"  # and paused: the memory is ours

    with tms.region("weights", backup="host"):
        weights = tensor(2)
    with tms.region("optimizer", backup="host"):
        moments = tensor(4)
    with tms.region("gradients"):  # each step makes new ones: no backup
        gradients = tensor(2)
    weights.fill_(0)
    moments.fill_(0)

    for step in range(1, steps + 1):
        gradients.fill_(step)
        moments.add_(step)
        weights.add_(1)
        tms.pause()
        print(f"generate {step}", file=server.stdin, flush=True)
        print(f"step {step}: the server says {server.stdout.readline().strip()}")
        tms.resume(wait=60)  # while the server's memory is on its way back

    server.stdin.close()
    server.wait()
    print(f"weights {int(weights[0])}, moments {int(moments[0])} after {steps} steps")


def server() -> None:
    with tms.region("rollout weights"):  # the trainer sends them each time: no backup
        weights = tensor(2)
    with tms.region("kv cache"):
        cache = tensor(12)
    tms.pause()
    print("ready", flush=True)
    for line in sys.stdin:
        step = int(line.split()[1])
        tms.resume(wait=60)
        weights.fill_(step)
        cache.fill_(step)
        said = f"{int(cache[-1])} tokens"
        tms.pause()
        print(said, flush=True)


if __name__ == "__main__":
    try:
        server() if sys.argv[1:] == ["server"] else trainer(int(sys.argv[1]) if sys.argv[1:] else 3)
    except KeyboardInterrupt:  # Ctrl-C ends both
        sys.exit(130)
