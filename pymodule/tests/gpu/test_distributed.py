"""tms.distributed on as many GPUs as there are, up to TMS_TEST_RANKS (8): figures, and training.

TMS_TEST_RANK_GIB is the size of a GPU's contents (16). The figures are printed as JSON lines, for
docs/benchmarks.md: by `pytest -s`, or in the log of scripts/gpu-test.sh.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu

import tms

torch = torch_on_gpu()

HERE = Path(__file__).resolve().parent
TMS = HERE.parents[2] / "build" / "bin" / "tms"
GIB = 1 << 30
RANKS = min(torch.cuda.device_count(), int(os.environ.get("TMS_TEST_RANKS", "8")))
SIZE = int(float(os.environ.get("TMS_TEST_RANK_GIB", "16")) * GIB)


def started(arguments: list[str], count: int, **variables: str) -> list[Any]:
    """Starts a program's processes, with rank, count, meeting, and the other arguments."""
    with socket.socket() as free:  # a TCPStore: ranks poll a file every 10 ms
        free.bind(("127.0.0.1", 0))
        meeting = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    return [
        subprocess.Popen(
            [sys.executable, *arguments[:1], str(rank), str(count), meeting, *arguments[1:]],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def lines(processes: list[Any], within: float = 300) -> list[Any]:
    """The JSON that each process prints last."""
    found = []
    try:
        for process in processes:
            out, _ = process.communicate(timeout=within)
            assert process.returncode == 0, out
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


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
stats = together.stats()
assert [each["rank"] for each in stats] == list(range(count))

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


def measured(count: int, directory: Path) -> dict[str, Any]:
    """Medians over the cycles but the first, of which each GPU's host memory is fresh; and what a
    plain copy of all GPUs at once reaches, to pinned memory or from it."""
    program = directory / "measure.py"
    program.write_text(MEASURE)
    found = lines(started([str(program), str(SIZE)], count, TMS_RETAIN_CPU_BACKUP="1"))
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


def test_figures(tmp_path: Path) -> None:
    """Control of at most 5 ms over the slowest rank. How the speed grows is printed, not judged:
    the host's memory may be the limit, which a plain copy of all GPUs at once then shows."""
    counts = [count for count in (1, 2, 4, 8) if count <= RANKS]
    all_figures = []
    for count in counts:
        figures = measured(count, tmp_path)
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
    program = str(HERE / "programs" / "train_group.py")
    runs = [lines(started([program, kind, "30", pause_every], RANKS)) for pause_every in ("0", "3")]
    assert runs[0] == runs[1]
    assert all(len(set(losses)) > 20 for losses in runs[0])


FROM_OUTSIDE = """
import json, os, sys
import torch, torch.distributed as dist
import tms
rank, count = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
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
print(json.dumps("done"), flush=True)
dist.destroy_process_group()
"""


# Up to ten collectives apart: a rank waits for its device only after each tenth, and takes its own
# time before each.
APART = """
import json, os, random, sys, time
import torch, torch.distributed as dist
import tms
rank, count = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
with tms.region("weights", backup="host"):
    weights = torch.zeros(1 << 20, device="cuda")
    other = torch.ones(1 << 20, device="cuda")
    stop = torch.zeros(1, device="cuda")
dist.all_reduce(stop)
torch.cuda.synchronize()
print("ready", flush=True)
random.seed(rank)
steps = 0
while True:
    for _ in range(10):
        weights += 1
        dist.all_reduce(other)
        other /= count
        if random.random() < 1 / 3:
            time.sleep(random.uniform(0, 0.01))
        steps += 1
    if rank == 0 and os.path.exists(sys.argv[4]):
        stop += 1
    dist.all_reduce(stop)
    if stop.item() > 0:
        break
assert (weights == steps).all() and (other == 1).all()
print(json.dumps("done"), flush=True)
dist.destroy_process_group()
"""

# Rows and columns of two ranks each, as in tensor and data parallelism, and sends and receives in a
# ring of all four.
GRID = """
import json, os, random, sys, time
import torch, torch.distributed as dist
import tms
rank, count = int(sys.argv[1]), int(sys.argv[2])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
rows = [dist.new_group([row, row + 1]) for row in range(0, count, 2)]
columns = [dist.new_group(list(range(column, count, 2))) for column in range(2)]
row, column = rows[rank // 2], columns[rank % 2]
with tms.region("weights", backup="host"):
    tensor = torch.ones(1 << 20, device="cuda")
    data = torch.ones(1 << 20, device="cuda")
    passed = torch.full((1 << 16,), float(rank), device="cuda")
    taken = torch.zeros(1 << 16, device="cuda")
    stop = torch.zeros(1, device="cuda")
def own_time():
    if random.random() < 1 / 3:
        time.sleep(random.uniform(0, 0.01))
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
random.seed(rank)
dist.all_reduce(stop)
step()
torch.cuda.synchronize()
print("ready", flush=True)
steps = 1
while True:
    for _ in range(5):
        step()
        steps += 1
    if rank == 0 and os.path.exists(sys.argv[4]):
        stop += 1
    dist.all_reduce(stop)
    if stop.item() > 0:
        break
assert (tensor == 1).all() and (data == 1).all() and (passed == (rank - steps) % count).all()
print(json.dumps("done"), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not TMS.exists(), reason="the command tms is not built")
@pytest.mark.parametrize("kind", ["busy", "apart", "grid"])
def test_job_from_outside(tmp_path: Path, kind: str) -> None:
    """tms pause --job of ranks that are in collectives all the time; how often it takes: three
    tries at most. Busy: the devices have work without end, and all ranks wait for them at the same
    places. Apart: ranks run up to ten collectives ahead of one another. Grid: several
    communicators, and sends and receives (four GPUs)."""
    if kind == "grid" and RANKS != 4:
        pytest.skip("needs four GPUs")
    program = tmp_path / "outside.py"
    program.write_text({"busy": FROM_OUTSIDE, "apart": APART, "grid": GRID}[kind])
    pauses = 5 if kind == "busy" else int(os.environ.get("TMS_TEST_JOB_PAUSES", "50"))
    end = tmp_path / "end"
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    variables = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(tmp_path), "TMS_CONTROL": "1"}
    library = Path(tms.library_path())
    variables["LD_PRELOAD"] = f"{library}:{library.parent / 'libtms_reach.so'}"
    variables["TORCHELASTIC_RUN_ID"] = "gpu-test"
    processes = started([str(program), str(end)], RANKS, **variables)

    def steer(*arguments: str) -> Any:
        done = subprocess.run(
            [str(TMS), *arguments, "--job", "gpu-test", "--json"],
            env={**os.environ, **variables, "LD_PRELOAD": ""},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)

    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
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
        assert lines(processes) == ["done"] * RANKS
    finally:
        for process in processes:
            process.kill()
            process.wait()
