"""Runs programs over the simulator, with the stand-in for PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import children

HERE = Path(__file__).resolve().parent
PATHS = [HERE / "fake", HERE / "clients"]

PRELUDE = """
import torch, tms
from torch_memory_saver import torch_memory_saver as saver
from common import SIZE, SLACK, full, free, holds
from expecting import raises
torch.cuda.synchronize()
initial = free()
"""


run = partial(children.python, paths=PATHS)
output = partial(children.output, quiet=True, paths=PATHS)
