"""tms.distributed on as many GPUs as there are, up to TESTS_RANKS (8): figures, and training.

TESTS_RANK_GIB is the size of a GPU's contents (16). The figures are printed as JSON lines, for
docs/measurements/ranks.md: by `pytest -s`, or in the log of scripts/gpu-test.sh.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from device import reaching, torch_on_gpu, unpreloaded
from group import last_line, meeting, started

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus

HERE = Path(__file__).resolve().parent
TMS = HERE.parents[2] / "build" / "bin" / "tms"
GIB = 1 << 30
RANKS = min(torch.cuda.device_count(), int(os.environ.get("TESTS_RANKS", "8")))
SIZE = int(float(os.environ.get("TESTS_RANK_GIB", "16")) * GIB)


def last_lines(count: int, program: list[str], *arguments: str, **variables: str) -> list[Any]:
    """The JSON that each rank prints last."""
    with started(count, program, str(count), meeting(), *arguments, **variables) as ranks:
        return [json.loads(last_line(rank)) for rank in ranks]


MEASURE = """
import json, sys, time
import torch, torch.distributed as dist
import tms, tms.distributed as together
from tms import _together

rank, count, size, cycles = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[4]), 5
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
ready = torch.ones(1, device="cuda")

def all_here():
    dist.all_reduce(ready)
    torch.cuda.synchronize()

own = []  # seconds of this rank's part alone
do = _together.Part.do
def timed(part):
    start = time.perf_counter()
    try:
        return do(part)
    finally:
        own.append(time.perf_counter() - start)
_together.Part.do = timed

with tms.region("weights", backup="host"):
    weights = torch.empty(size, dtype=torch.uint8, device="cuda")
weights.view(torch.int64).random_()
def contents():
    return [int(part.sum()) for part in weights.view(torch.int64).split(1 << 28)]
before = contents()
all_here()
results = []
for cycle in range(cycles):
    for operation in (together.pause, together.resume):
        all_here() if operation is together.pause else dist.barrier()
        start = time.perf_counter()
        assert operation("weights", timeout=120) >= size
        results.append([operation.__name__, time.perf_counter() - start, own[-1]])
assert contents() == before

# What the machine can do: all ranks copy at once, between the device and pinned memory.
plain, times = [], 4
part = weights[: 1 << 31]
host = torch.empty(part.numel(), dtype=torch.uint8, pin_memory=True)
for name, to, of in (("pause", host, part), ("resume", part, host)) * 2:
    all_here()
    start = time.perf_counter()
    for _ in range(times):
        to.copy_(of, non_blocking=True)
    torch.cuda.synchronize()
    plain.append([name, times * part.numel() / 1e9 / (time.perf_counter() - start)])
assert contents() == before
print(json.dumps([results, plain[2:]]), flush=True)
dist.destroy_process_group()
"""


def measured(count: int) -> dict[str, Any]:
    """Medians over the cycles but the first, of which each GPU's host memory is fresh; and what a
    plain copy of all GPUs at once reaches, to pinned memory or from it."""
    found = last_lines(count, ["-c", MEASURE], str(SIZE), TMS_RETAIN_CPU_BACKUP="1")
    figures: dict[str, Any] = {"ranks": count, "gib_per_rank": SIZE / GIB}
    for operation in ("pause", "resume"):
        cycles = [
            [(total, own) for name, total, own in rank if name == operation][1:]
            for rank, _ in found
        ]
        each = list(zip(*cycles))  # per cycle: (total, own) of every rank
        slowest = [max(own for _, own in cycle) for cycle in each]
        fastest = [min(own for _, own in cycle) for cycle in each]
        total = [max(total for total, _ in cycle) for cycle in each]
        figures[operation] = {
            "seconds": round(statistics.median(total), 4),
            "gb_per_s_together": round(count * SIZE / 1e9 / statistics.median(total), 1),
            "slowest_over_fastest": round(
                statistics.median(s / f for s, f in zip(slowest, fastest)), 3
            ),
            "plain_copy_gb_per_s": round(sum(dict(plain)[operation] for _, plain in found), 1),
            "control_ms": round(1000 * statistics.median(t - s for t, s in zip(total, slowest)), 2),
        }
    return figures


def test_figures() -> None:
    """Control of at most 5 ms over the slowest rank. How the speed grows is printed, not judged:
    the host's memory may be the limit, which a plain copy of all GPUs at once then shows."""
    counts = [count for count in (1, 2, 4, 8) if count <= RANKS]
    all_figures = []
    for count in counts:
        figures = measured(count)
        all_figures.append(figures)
        print(json.dumps(figures), flush=True)
    for operation in ("pause", "resume"):
        for key in ("gb_per_s_together", "plain_copy_gb_per_s"):
            speeds = [figures[operation][key] for figures in all_figures]
            times = ", ".join(f"{speed / speeds[0]:.2f}" for speed in speeds)
            print(f"{operation} with {counts} ranks, {key}: {times} times that of one", flush=True)
        for figures in all_figures:
            assert figures[operation]["control_ms"] <= 5, figures


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training(kind: str) -> None:
    """On every rank a training with pauses has the same losses as one without."""
    program = [str(HERE / "programs" / "train_group.py")]
    runs = [last_lines(RANKS, program, kind, "30", pause_every) for pause_every in ("0", "3")]
    assert runs[0] == runs[1]
    assert all(len(set(losses)) > 20 for losses in runs[0])


BEGIN = """
import json, os, random, sys, time
import torch, torch.distributed as dist
import tms
rank, count = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
random.seed(rank)
def own_time():
    if random.random() < 1 / 3:
        time.sleep(random.uniform(0, 0.01))
"""

UNTIL_TOLD = """
dist.all_reduce(stop)
step()
torch.cuda.synchronize()
print("ready", flush=True)
steps = 1
while stop.item() == 0:
    for _ in range(EACH):
        step()
        steps += 1
    if rank == 0 and os.path.exists(sys.argv[4]):
        stop += 1
    dist.all_reduce(stop)
assert right()
"""

END = """
print(json.dumps("done"), flush=True)
dist.destroy_process_group()
"""

BUSY = """
with tms.region("weights", backup="host"):
    weights = torch.zeros(64 << 20, device="cuda")
    other = torch.ones(1 << 20, device="cuda")
print("ready", flush=True)
for step in range(20000):
    weights += 1
    dist.all_reduce(other)
    other /= count
    if step % 50 == 49:
        torch.cuda.synchronize()
assert (weights == 20000).all() and (other == 1).all()
"""


# Up to ten collectives apart: a rank waits for its device only after each tenth, and takes its own
# time before each.
APART = """
EACH = 10  # steps
with tms.region("weights", backup="host"):
    weights = torch.zeros(1 << 20, device="cuda")
    other = torch.ones(1 << 20, device="cuda")
    stop = torch.zeros(1, device="cuda")
def step():
    weights.add_(1)
    dist.all_reduce(other)
    other.div_(count)
    own_time()
def right():
    return (weights == steps).all() and (other == 1).all()
"""

# Rows and columns of two ranks each, as in tensor and data parallelism, and sends and receives in a
# ring of all four.
GRID = """
EACH = 5  # steps
rows = [dist.new_group([row, row + 1]) for row in range(0, count, 2)]
columns = [dist.new_group(list(range(column, count, 2))) for column in range(2)]
row, column = rows[rank // 2], columns[rank % 2]
with tms.region("weights", backup="host"):
    tensor = torch.ones(1 << 20, device="cuda")
    data = torch.ones(1 << 20, device="cuda")
    passed = torch.full((1 << 16,), float(rank), device="cuda")
    taken = torch.zeros(1 << 16, device="cuda")
    stop = torch.zeros(1, device="cuda")
def step():
    for _ in range(3):
        dist.all_reduce(tensor, group=row)
        tensor.div_(2)
        own_time()
    dist.all_reduce(data, group=column)
    data.div_(count // 2)
    own_time()
    sends = [
        dist.P2POp(dist.isend, passed, (rank + 1) % count),
        dist.P2POp(dist.irecv, taken, (rank - 1) % count),
    ]
    for work in dist.batch_isend_irecv(sends):
        work.wait()
    passed.copy_(taken)
    own_time()
def right():
    return (tensor == 1).all() and (data == 1).all() and (passed == (rank - steps) % count).all()
"""

PROGRAMS = {"busy": BUSY, "apart": APART + UNTIL_TOLD, "grid": GRID + UNTIL_TOLD}


@pytest.mark.skipif(not TMS.exists(), reason="the command tms is not built")
@pytest.mark.parametrize("kind", PROGRAMS)
def test_job_from_outside(tmp_path: Path, kind: str) -> None:
    """tms pause --job of ranks that are in collectives all the time; how often it takes: three
    tries at most. Busy: the devices have work without end, and all ranks wait for them at the same
    places. Apart: ranks run up to ten collectives ahead of one another. Grid: several
    communicators, and sends and receives (four GPUs)."""
    if kind == "grid" and RANKS != 4:
        pytest.skip("needs four GPUs")
    pauses = 5 if kind == "busy" else int(os.environ.get("TESTS_JOB_PAUSES", "50"))
    end = tmp_path / "end"
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    folders = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(tmp_path)}

    def steer(*arguments: str) -> Any:
        done = subprocess.run(
            [str(TMS), *arguments, "--job", "gpu-test", "--json"],
            env=unpreloaded(**folders),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    program = ["-c", BEGIN + PROGRAMS[kind] + END]
    variables = {**folders, "TMS_CONTROL": "1", "TORCHELASTIC_RUN_ID": "gpu-test", **reaching()}
    with started(RANKS, program, str(RANKS), meeting(), str(end), **variables) as processes:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        tries, seconds = [], []
        until = time.monotonic() + 45
        while len(tries) < pauses and time.monotonic() < until:
            if any(process.poll() is not None for process in processes):
                break
            begun = time.monotonic()
            outcomes = steer("pause", "--timeout", "60")
            seconds.append(time.monotonic() - begun)
            assert len(outcomes) == RANKS and all(each["ok"] for each in outcomes)
            tries.append(outcomes[0]["tries"])
            assert all(each["ok"] for each in steer("resume"))
            time.sleep(0.2 if kind == "busy" else 0.02)
        end.touch()
        assert tries
        print(
            json.dumps(
                {
                    "ranks": RANKS,
                    "kind": kind,
                    "tries of each pause": tries,
                    "seconds of each pause": [round(each, 3) for each in seconds],
                    "median seconds": round(statistics.median(seconds), 3),
                    "most seconds": round(max(seconds), 3),
                }
            ),
            flush=True,
        )
        assert max(tries) <= 3
        assert [json.loads(last_line(process)) for process in processes] == ["done"] * RANKS
