"""What NCCL leaves after a pause, and one of everything: one rank, two in a process, two in two.

The ranks must go on after each, whether it was made or refused. With -s the figures are printed.
For an NCCL other than PyTorch's set LD_PRELOAD=libtms.so:libnccl.so.2, and TESTS_NCCL=2.30.7 as
the version that must then be found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from device import MiB, torch_on_gpu
from following import Follower

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus
TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
WEIGHTS = 1024 * MiB
JOB = f"test-{os.getpid()}"
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this needs two GPUs")

VERSION = """
import ctypes

def version():  # of the NCCL that is loaded: PyTorch tells of that with which it was built
    code = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(code))
    return f"{code.value // 10000}.{code.value // 100 % 100}.{code.value % 100}"
"""

RANK = """
import sys
import torch
import torch.distributed as dist

rank, ranks = int(sys.argv[1]), int(sys.argv[3])
torch.cuda.set_device(rank)
weights = torch.full((1024 << 18,), float(rank + 1), device="cuda")
dist.init_process_group("nccl", init_method=sys.argv[2], rank=rank, world_size=ranks)
sums = torch.ones(1 << 20, device="cuda")
for line in sys.stdin:
    if line == "version\\n":
        print(version(), flush=True)
        continue
    sums.fill_(rank + 1.0)
    dist.all_reduce(sums)
    torch.cuda.synchronize()
    assert sums.eq(ranks * (ranks + 1) / 2).all() and weights.eq(rank + 1.0).all()
    print("done", flush=True)
dist.destroy_process_group()
"""

# One process with a rank on each of two GPUs: ncclCommInitAll.
BOTH = """
import sys
import torch
from torch.cuda import nccl

weights = torch.full((1024 << 18,), 1.0, device="cuda:0")
for line in sys.stdin:
    if line == "version\\n":
        print(version(), flush=True)
        continue
    sums = [torch.full((1 << 20,), i + 1.0, device=f"cuda:{i}") for i in range(2)]
    nccl.all_reduce(sums)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    assert all(s.eq(3.0).all() for s in sums) and weights.eq(1.0).all()
    print("done", flush=True)
"""


class Rank(Follower):
    """A program that follows commands."""

    def __init__(self, rank: int, source: str, *arguments: str) -> None:
        self.rank = rank
        torch.zeros(1, device=f"cuda:{rank}")  # this process's own context comes first
        self.before = torch.cuda.mem_get_info(rank)[0]
        program = [sys.executable, "-c", VERSION + source, *arguments]
        # tms run becomes the program, and keeps the number
        run: list[str | Path] = [TMS, "run", "--backup", "host", "--"]
        super().__init__([*run, *program], env={**os.environ, "TORCHELASTIC_RUN_ID": JOB})

    def missing(self) -> int:
        """How much of its device others find missing, in MiB."""
        return int(self.before - torch.cuda.mem_get_info(self.rank)[0]) // MiB

    def left(self) -> str:
        return f"{self.missing()} MiB left"


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


def everything(ranks: list[Rank]) -> None:
    """It is made, and reports NCCL, or it is refused before the driver is asked."""
    pids = [str(rank.process.pid) for rank in ranks]
    for outcome, rank in zip(outcomes("pause", *pids, "--everything"), ranks):
        said = outcome.get("nccl") if outcome["ok"] else outcome["error"]
        print(f"everything: {rank.left()}: {said}")
        expected = "NCCL " if outcome["ok"] else "the driver's checkpoint would lose this process"
        assert said.startswith(expected), outcome
    resume(*pids)
    reduce(ranks)


@contextmanager
def running(*ranks: Rank) -> Iterator[list[Rank]]:
    """Ranks that have done one collective."""
    try:
        version = ranks[0].ask("version")
        print(f"\nNCCL {version}, torch {torch.__version__}")
        assert version == os.environ.get("TESTS_NCCL", version)
        reduce(list(ranks))
        print("running:", *[rank.left() for rank in ranks])
        yield list(ranks)
    finally:
        for rank in ranks:
            assert rank.process.stdin
            rank.process.stdin.close()  # all of them, because one may wait for another to leave
        for rank in ranks:
            try:
                rank.process.wait(60)
            except subprocess.TimeoutExpired:
                rank.process.kill()
    assert [rank.process.wait() for rank in ranks] == [0] * len(ranks)


def test_one_rank(tmp_path: Path) -> None:
    """A communicator of one rank is suspended if NCCL can do so: nothing is left."""
    with running(Rank(0, RANK, "0", f"file://{tmp_path}/meeting", "1")) as ranks:
        for _ in range(3):
            everything(ranks)


@two_gpus
def test_two_ranks_in_a_process() -> None:
    """As ncclCommInitAll makes them. With NVLink multicast (NCCL_NVLS_ENABLE) it is refused."""
    with running(Rank(0, BOTH)) as ranks:
        for _ in range(3):
            everything(ranks)


@two_gpus
def test_two_ranks(tmp_path: Path) -> None:
    """A pause of both; of one, with the other in a collective; of both with everything."""
    meeting = f"file://{tmp_path}/meeting"
    with running(*[Rank(rank, RANK, str(rank), meeting, "2") for rank in range(2)]) as ranks:
        pids = [str(rank.process.pid) for rank in ranks]
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

        everything(ranks)


@two_gpus
def test_two_ranks_of_a_job(tmp_path: Path) -> None:
    """All of both, if NCCL can be suspended; otherwise what is pausable, with the reason."""
    meeting = f"file://{tmp_path}/meeting"
    with running(*[Rank(rank, RANK, str(rank), meeting, "2") for rank in range(2)]) as ranks:
        for _ in range(int(os.environ.get("TESTS_CYCLES", "5"))):
            begun = time.monotonic()
            for outcome, rank in zip(outcomes("pause", "--job", JOB, "--everything"), ranks):
                assert outcome["ok"] and outcome["bytes"] >= WEIGHTS, outcome
                gone = "suspended" in outcome["nccl"]
                print(f"{rank.left()}: {outcome['nccl']}: {outcome.get('stays', 'nothing stays')}")
                assert (rank.missing() <= 8) == gone and ("stays" in outcome) != gone, outcome
            out = time.monotonic()
            for outcome in outcomes("resume", "--job", JOB):
                assert outcome["ok"] and not outcome.get("nccl"), outcome
            print(f"out {out - begun:.2f} s, back {time.monotonic() - out:.2f} s")
            reduce(ranks)


@two_gpus
def test_two_ranks_change_places(tmp_path: Path) -> None:
    """Each moves to the other's GPU, if NCCL can be suspended; otherwise both stay."""
    meeting = f"file://{tmp_path}/meeting"
    with running(*[Rank(rank, RANK, str(rank), meeting, "2") for rank in range(2)]) as ranks:
        for _ in range(int(os.environ.get("TESTS_CYCLES", "5"))):
            moves = outcomes("move", "--job", JOB, "--map", "0=1,1=0")
            for outcome in moves:
                print(outcome.get("nccl"), outcome.get("move"), outcome.get("error"))
                if "suspended" in outcome.get("nccl", ""):
                    assert outcome["ok"], outcome
                else:
                    why = moves[0]["error"] + moves[1]["error"]
                    assert "is not suspended" in why or "checkpoint would lose" in why, moves
            reduce(ranks)
