"""A step a second, until Ctrl-C: each checks 64 MiB that the last one wrote, and writes them again.

tms run -- python steps.py                           # with PyTorch, on a GPU
tms run --simulate --devices 2 -- python steps.py    # without either
"""

from __future__ import annotations

import itertools
import os
import sys
import time

if "CUDASIM_SHARED" not in os.environ:
    import torch
else:  # under tms run --simulate
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # for python -m, too
    import simulated as torch

weights = torch.empty((64 << 20,), dtype=torch.uint8, device="cuda")
weights.fill_(0)
try:
    for step in itertools.count(1):
        kept = int(weights[-1]) == (step - 1) % 256
        weights.fill_(step % 256)
        print(f"step {step}: contents {'kept' if kept else 'LOST'}", flush=True)
        time.sleep(1)
except KeyboardInterrupt:
    pass
