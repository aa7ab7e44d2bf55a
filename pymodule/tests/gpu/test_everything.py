"""What is left of a process on a GPU: after a pause, after everything, after only the driver's
part.

The tms command pauses a process with 32 captured graphs while this process looks at the device.
With -s the figures are printed as a table. EVERYTHING_CYCLES (20) is how often it is paused,
EVERYTHING_GIB (8) how large the weights are.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import MiB, torch_on_gpu, unpreloaded
from following import Follower

torch = torch_on_gpu()

CYCLES = int(os.environ.get("EVERYTHING_CYCLES", "20"))
GIB = int(os.environ.get("EVERYTHING_GIB", "8"))
TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
MOST_LEFT = 8 * MiB

PROGRAM = """
import sys, time
import torch, tms

gib = int(sys.argv[1])
torch.manual_seed(1)
with tms.region("weights", backup="host"):
    made = dict(device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(4096, 4096, **made) / 64 for _ in range(33)]
    size = gib * (1 << 30) - 33 * (32 << 20)
    rest = torch.randint(256, (size,), device="cuda", dtype=torch.uint8)
with tms.region("cache"):
    cache = torch.zeros(256 << 20, device="cuda", dtype=torch.uint8)
source = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    torch.relu(source @ weights[0]) @ weights[1]
torch.cuda.synchronize()
graphs = []
for i in range(32):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.relu(source @ weights[i]) @ weights[i + 1]
    graphs.append((graph, result))

places = torch.arange(64 * 4096, device="cuda").view(64, 4096) * 2 + 1

def outputs():
    # Of each output, bit by bit and where; then of the weights.
    sums = []
    for graph, result in graphs:
        graph.replay()
        sums.append(int((result.view(torch.int16).to(torch.int64) * places).sum()))
    # A sum of bytes would make a copy eight times as large, which stays in PyTorch's cache.
    sums.append(int(rest.view(torch.int64).sum()))
    return " ".join(map(str, sums))

def inside():
    begin = time.monotonic()
    freed = tms.pause(everything=True)
    out = time.monotonic()
    taken = tms.resume()
    return f"{out - begin} {time.monotonic() - out} {freed} {taken}"

outputs()
torch.cuda.synchronize()
tms.empty_cache()
tms.serve()
print("ready", flush=True)
for line in sys.stdin:
    print({"outputs": outputs, "inside": inside}[line.strip()](), flush=True)
"""


class Program(Follower):
    """The process that is paused."""

    def __init__(self, runtime: Path) -> None:
        self.variables = {"XDG_RUNTIME_DIR": str(runtime), "TMS_COMMAND": str(TMS)}
        command = [sys.executable, "-c", PROGRAM, str(GIB)]
        super().__init__(command, env={**os.environ, **self.variables})
        assert self.answer() == "ready"

    def tms(self, *arguments: str) -> tuple[dict[str, Any], float]:
        """What the command prints about the process, and the seconds that it took."""
        begin = time.monotonic()
        done = subprocess.run(
            [str(TMS), *arguments, str(self.process.pid), "--json"],
            env=unpreloaded(**self.variables),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        seconds = time.monotonic() - begin
        assert done.returncode == 0, done.stdout + done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout)[0]
        return outcome, seconds


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info(0)[0])


@pytest.fixture
def alone() -> int:
    """The device's free bytes while this process is alone there."""
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return free_bytes()


@pytest.fixture
def program(alone: int, tmp_path: Path) -> Iterator[Program]:
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "cuCheckpointProcessLock"):
        pytest.skip("the driver is older than 570")
    started = Program(tmp_path)
    yield started
    started.kill()


class Checkpoint:
    """The driver's checkpoint of another process, alone."""

    def __init__(self, pid: int) -> None:
        self.library, self.pid = ctypes.CDLL("libcuda.so.1"), pid

    def call(self, name: str) -> None:
        code = getattr(self.library, f"cuCheckpointProcess{name}")(self.pid, None)
        assert code == 0, f"cuCheckpointProcess{name} gives {code}"


def median(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def row(name: str, left: int, out: list[float], back: list[float]) -> str:
    return f"| {name} | {left / MiB:.0f} MiB | {median(out)} | {median(back)} |"


def test_what_is_left(program: Program, alone: int) -> None:
    expected = program.ask("outputs")
    table = [
        f"{torch.cuda.get_device_name(0)}, {GIB} GiB of weights with contents, 32 graphs",
        "| | left | out, s | back, s |",
        "| --- | --- | --- | --- |",
        f"| running | {(alone - free_bytes()) / MiB:.0f} MiB | | |",
    ]

    out, back, left = [], [], 0
    for _ in range(3):
        out.append(program.tms("pause", "--force")[1])
        left = alone - free_bytes()
        back.append(program.tms("resume")[1])
        assert program.ask("outputs") == expected
    table.append(row("paused", left, out, back))
    assert left > MOST_LEFT  # otherwise there would be nothing to take

    out, back, driver_out, driver_back, most = [], [], [], [], 0
    for cycle in range(CYCLES):
        outcome, seconds = program.tms("pause", "--force", "--everything")
        out.append(seconds)
        driver_out.append(outcome["driver_seconds"])
        most = max(most, alone - free_bytes())
        outcome, seconds = program.tms("resume")
        back.append(seconds)
        driver_back.append(outcome["driver_seconds"])
        assert program.ask("outputs") == expected, f"cycle {cycle}"
    table.append(row(f"paused, everything ({CYCLES} times)", most, out, back))
    table.append(row("of that, the driver (lock and checkpoint)", most, driver_out, driver_back))
    assert most <= MOST_LEFT, f"{most / MiB:.1f} MiB are left"

    driver = Checkpoint(program.process.pid)
    out, back = [], []
    for _ in range(3):
        begin = time.monotonic()
        driver.call("Lock")
        driver.call("Checkpoint")
        out.append(time.monotonic() - begin)
        left = alone - free_bytes()
        begin = time.monotonic()
        driver.call("Restore")
        driver.call("Unlock")
        back.append(time.monotonic() - begin)
        assert program.ask("outputs") == expected
    table.append(row("the driver's checkpoint alone", left, out, back))
    print("\n" + "\n".join(table))


def test_from_inside(program: Program) -> None:
    expected = program.ask("outputs")
    out, back = [], []
    for _ in range(3):
        words = program.ask("inside").split()
        out.append(float(words[0]))
        back.append(float(words[1]))
        assert int(words[2]) >= int(words[3]) >= GIB << 30  # slack is not taken again
        assert program.ask("outputs") == expected
    print(f"\ntms.pause(everything=True) {median(out)} s, tms.resume() {median(back)} s")


def test_contents_to_disk(program: Program) -> None:
    """At the disk's own speed, which a plain writer measures in the same run."""
    expected = program.ask("outputs")
    directory = os.environ.get("TMPDIR", "/tmp")
    path = os.path.join(directory, f"plain-{os.getpid()}")
    begin = time.monotonic()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={path}", "bs=32M", f"count={GIB * 32}", "oflag=direct"],
        check=True,
        capture_output=True,
    )
    plain = GIB / (time.monotonic() - begin)
    os.unlink(path)
    program.tms("pause", "--force")
    outcome, out = program.tms("pause", "--force", "--to", "disk")
    moved = outcome["moved_bytes"]
    assert moved >= GIB << 30
    outcome, back = program.tms("pause", "--force", "--to", "host")
    assert outcome["moved_bytes"] == moved
    program.tms("pause", "--force", "--to", "disk")
    program.tms("resume")
    assert program.ask("outputs") == expected
    print(
        f"\n{moved / 2**30:.1f} GiB to disk at {moved / 2**30 / out:.2f} GiB/s, back at "
        f"{moved / 2**30 / back:.2f}; a plain O_DIRECT writer, one request at a time: {plain:.2f}"
    )


def test_another_process_has_the_device(program: Program, alone: int) -> None:
    """This process uses nearly all of the device while the other is out."""
    expected = program.ask("outputs")
    program.tms("pause", "--force", "--everything")
    size = alone - 512 * MiB
    hog = torch.full((size,), 7, dtype=torch.uint8, device="cuda")
    assert int(hog[:: 1 << 20].min()) == int(hog[:: 1 << 20].max()) == 7
    del hog
    torch.cuda.empty_cache()
    program.tms("resume")
    assert program.ask("outputs") == expected
