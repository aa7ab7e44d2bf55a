"""What a program could allocate before a pause, it can allocate after it.

PyTorch, started by `tms run`, is paused and resumed by pid. Then it frees three of each four of its
tensors, and asks for more than was free: it gives back what it caches, and asks again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from device import MiB, free_memory, full, torch_on_gpu
from reaching import started, steer

torch = torch_on_gpu()

ROOM = 6 * 1024 * MiB
PROGRAM = """
import sys, torch
MiB = 1 << 20
torch.zeros(1, device="cuda")
room = torch.cuda.mem_get_info()[0] - 512 * MiB
pieces = [torch.full((18 * MiB,), i % 251, dtype=torch.uint8, device="cuda")
          for i in range(int(room * 0.8) // (18 * MiB))]
torch.cuda.synchronize()
print("ready", len(pieces) * 18 * MiB, flush=True)
sys.stdin.read()
pieces = pieces[::4]
big = torch.full((room // 2,), 7, dtype=torch.uint8, device="cuda")
assert int(big[0]) == int(big[-1]) == 7
for i, piece in enumerate(pieces):
    assert bool((piece == i * 4 % 251).all()), i
print("steps 1")
print("digest", torch.cuda.memory_stats()["num_ooms"])
"""


@pytest.mark.parametrize("pauses", [0, 1, 3])
def test_after_a_pause(pauses: int, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    hog = full(1, free_memory() - ROOM)
    try:
        with started([sys.executable, path], 1, options=[], seconds=180) as program:
            program.ready()
            for _ in range(pauses):
                steer(program, "pause", seconds=60)
                steer(program, "resume", seconds=60)
            assert program.end() == (1, "0")
    finally:
        del hog
        torch.cuda.empty_cache()
