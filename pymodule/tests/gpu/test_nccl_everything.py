"""Two ranks on two GPUs: what NCCL leaves of a pause, and of a pause of everything.

Both ranks must go on after each, whether it was made or refused. With -s what was seen is printed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from device import MiB, torch_on_gpu

torch = torch_on_gpu()
TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
WEIGHTS = 1024 * MiB

RANK = """
import sys
import torch
import torch.distributed as dist

rank = int(sys.argv[1])
torch.cuda.set_device(rank)
weights = torch.full((1024 << 18,), float(rank + 1), device="cuda")
dist.init_process_group("nccl", init_method=sys.argv[2], rank=rank, world_size=2)
sums = torch.ones(1 << 20, device="cuda")
for line in sys.stdin:
    if line == "version\\n":
        print(".".join(map(str, torch.cuda.nccl.version())), flush=True)
        continue
    sums.fill_(rank + 1.0)
    dist.all_reduce(sums)
    torch.cuda.synchronize()
    assert sums.eq(3.0).all() and weights.eq(rank + 1.0).all()
    print("done", flush=True)
dist.destroy_process_group()
"""


class Rank:
    """One of the two, which does what it is told."""

    def __init__(self, rank: int, meeting: str) -> None:
        self.rank = rank
        self.before = torch.cuda.mem_get_info(rank)[0]
        program = [sys.executable, "-c", textwrap.dedent(RANK), str(rank), meeting]
        self.process = subprocess.Popen(  # tms run becomes the program, and keeps the number
            [TMS, "run", "--backup", "host", "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, words: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"rank {self.rank} has ended"
        return line.strip()

    def left(self) -> str:
        """What others miss of its device."""
        return f"{(self.before - torch.cuda.mem_get_info(self.rank)[0]) // MiB} MiB left"


def reduce(ranks: list[Rank]) -> None:
    for rank in ranks:
        rank.tell("reduce")
    assert [rank.answer() for rank in ranks] == ["done"] * len(ranks)


def outcomes(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [TMS, *arguments, "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def resume(*pids: str) -> None:
    for outcome in outcomes("resume", *pids):
        assert outcome["ok"], outcome


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this needs two GPUs")
def test_two_ranks(tmp_path: Path) -> None:
    """Both paused; one paused, with the other in a collective; both paused with everything."""
    for device in range(2):  # this process's own contexts come first
        torch.zeros(1, device=f"cuda:{device}")
    ranks = [Rank(rank, f"file://{tmp_path}/meeting") for rank in range(2)]
    try:
        ranks[0].tell("version")
        print(f"\nNCCL {ranks[0].answer()}, torch {torch.__version__}")
        reduce(ranks)
        pids = [str(rank.process.pid) for rank in ranks]
        print("running:", *[rank.left() for rank in ranks])

        for outcome in outcomes("pause", *pids):
            assert outcome["ok"] and outcome["bytes"] >= WEIGHTS, outcome
        print("paused:", *[rank.left() for rank in ranks])
        resume(*pids)
        reduce(ranks)

        (outcome,) = outcomes("pause", pids[0])
        assert outcome["ok"], outcome
        for rank in ranks:
            rank.tell("reduce")
        time.sleep(1)  # rank 1 waits in it
        resume(pids[0])
        assert [rank.answer() for rank in ranks] == ["done", "done"]

        for outcome, rank in zip(outcomes("pause", *pids, "--everything"), ranks):
            said = outcome.get("nccl") if outcome["ok"] else outcome["error"]
            print(f"everything: {rank.left()}: {said}")
            if outcome["ok"]:
                assert said.startswith("NCCL "), outcome
            else:  # before the driver was asked
                assert "the driver's checkpoint would lose this process" in said, outcome
        resume(*pids)
        reduce(ranks)
    finally:
        for rank in ranks:
            assert rank.process.stdin
            rank.process.stdin.close()
        for rank in ranks:
            try:
                rank.process.wait(60)
            except subprocess.TimeoutExpired:
                rank.process.kill()
    assert [rank.process.returncode for rank in ranks] == [0, 0]
