"""How much room a restore by the driver needs, and how many are lost beside others that take it.

On driver 580 a restore that finds too little memory loses the process, so tms looks before. With -s
the figures are printed, for internal/machine/checkpoint/drivers.go and docs/what-stays.md. RESTORES
(200) is how many are made beside each neighbour, by ROOM_PROGRAMS (4) programs at a time;
ROOM_SECONDS (80) is how long each neighbour's part may take. Nothing else may use the GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from device import MiB, torch_on_gpu, unpreloaded
from following import Follower

torch = torch_on_gpu()

RESTORES = int(os.environ.get("RESTORES", "200"))
PROGRAMS = int(os.environ.get("ROOM_PROGRAMS", "4"))
SECONDS = float(os.environ.get("ROOM_SECONDS", "80"))
TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
ROOM = Path(__file__).parent / "programs" / "room.py"
LOST = 4  # the command's exit status
MOST = 128  # MiB beside NVML's figure, within which the need is looked for

TORCH = """
import sys, torch
a = torch.randn(1 << 24, device="cuda"); x = torch.randn(2048, 2048, device="cuda"); y = x @ x
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): y = x @ x
print("ready", flush=True)
for line in sys.stdin:
    graph.replay(); torch.cuda.synchronize(); print(7, flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """The environment of the command, and of programs."""
    if not hasattr(ctypes.CDLL("libcuda.so.1"), "cuCheckpointProcessLock"):
        pytest.skip("the driver is older than 570")
    return unpreloaded(XDG_RUNTIME_DIR=str(tmp_path), TMS_COMMAND=str(TMS))


class Program(Follower):
    """A program of tms run, or without tms."""

    def __init__(self, place: dict[str, str], *command: str | Path, steered: bool = True) -> None:
        run: list[str | Path] = [TMS, "run", "--"] if steered else []
        super().__init__([*run, sys.executable, *command], env=place)
        self.place = place
        assert self.answer() == "ready"

    @property
    def pid(self) -> str:
        return str(self.process.pid)

    def tms(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [TMS, *arguments],
            env=self.place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def must(self, *arguments: str) -> str:
        done = self.tms(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def taken(self) -> int:
        """What the driver has of it, as was noted at the checkpoint."""
        (state,) = json.loads(self.must("ps", "--json", self.pid))
        return sum(d["bytes"] for d in state["driver"]["devices"])


@pytest.fixture
def ballast(place: dict[str, str]) -> Iterator[Program]:
    """Takes what the others are not to have."""
    program = Program(place, ROOM, steered=False)
    yield program
    program.kill()


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


def free_now() -> int:
    """By NVML, as tms looks."""
    nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), Memory()
    memory.version = ctypes.sizeof(Memory) | 2 << 24
    assert nvml.nvmlInit_v2() == 0
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
    assert nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory)) == 0
    return int(memory.free)


def restored_with(
    place: dict[str, str], ballast: Program, kind: tuple[str, ...], more: int
) -> dict[str, Any]:
    """Whether the driver alone restores a new program with `more` MiB beside NVML's figure."""
    program = Program(place, *kind)
    try:
        if kind[0] != "-c":
            program.ask(f"hold {64 * MiB}")
        program.must("pause", program.pid)
        before = free_now()
        program.must("resume", program.pid)
        program.must("pause", program.pid, "--everything")
        taken, gone = program.taken(), free_now() - before
        ballast.ask(f"fill {taken + more * MiB}")
        left = free_now()
        code = ctypes.CDLL("libcuda.so.1").cuCheckpointProcessRestore(program.process.pid, None)
        need = left - free_now()
        ballast.ask("free")
        again = program.tms("resume", program.pid, "--wait", "10")
        came = code == 0 and again.returncode == 0 and program.ask("check") == "7"
        figures = (left, taken, gone, need)
        return {"came": came, "row": f"{' | '.join(str(f // MiB) for f in figures)} | {code}"}
    finally:
        program.kill()
        ballast.ask("free")


@pytest.mark.parametrize("name", ["driver", "torch"])
def test_how_much_a_restore_needs(name: str, place: dict[str, str], ballast: Program) -> None:
    kind = (str(ROOM),) if name == "driver" else ("-c", TORCH)
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    low, high = -MOST, MOST  # fails, succeeds
    table = ["| MiB more | left | NVML's figure | gone from the device | restore took | code |"]
    while high - low > 2:
        more = (low + high) // 4 * 2
        tried = restored_with(place, ballast, kind, more)
        table.append(f"| {more} | {tried['row']} |")
        if tried["came"]:
            high = more
        else:
            low = more
    print(f"\n{name}: a restore needs {high} MiB beside NVML's figure at most\n" + "\n".join(table))
    assert high <= 64, "the margin of internal/machine/checkpoint/drivers.go is too small"


class Count:
    """Programs that are paused with everything and resumed, beside something."""

    def __init__(
        self,
        place: dict[str, str],
        quiet: Callable[[bool], None] = lambda now: None,
        up: Callable[[], None] = lambda: None,
        hostile: bool = False,
    ) -> None:
        self.place, self.quiet, self.hostile = place, quiet, hostile
        self.up = threading.Barrier(PROGRAMS, up, timeout=120)
        self.lock, self.starting = threading.Lock(), threading.Lock()
        self.made, self.lost, self.refused, self.unmade = 0, 0, 0, 0
        self.wrong: list[str] = []
        self.until = 0.0

    def goes_on(self) -> bool:
        with self.lock:
            return self.made < RESTORES and time.monotonic() < self.until and not self.wrong

    def program(self) -> Program:
        with self.starting:
            self.quiet(True)
            program = Program(self.place, ROOM)
            program.ask(f"hold {64 * MiB}")
            self.quiet(False)
        return program

    def thread(self) -> None:
        try:
            self.cycle()
        except Exception as error:
            self.wrong.append(repr(error))

    def short_of_memory(self, said: str) -> bool:
        """Whether a checkpoint was refused because the neighbour had all memory."""
        short = self.hostile and "out of memory (2)" in said
        self.unmade += short
        return short

    def cycle(self) -> None:
        program = self.program()
        self.up.wait()
        self.until = self.until or time.monotonic() + SECONDS
        while self.goes_on():
            paused = program.tms("pause", program.pid, "--everything")
            resumed = program.tms("resume", program.pid, "--wait", "30")
            with self.lock:
                self.made += resumed.returncode in (0, LOST)
                self.lost += resumed.returncode == LOST
                self.refused += resumed.returncode == 1
            if resumed.returncode == LOST:
                program.kill()
                program = self.program()
            elif self.short_of_memory(paused.stderr):
                program.kill()  # the checkpoint itself found no memory: the driver lost nothing
                program = self.program()
            elif paused.returncode or resumed.returncode not in (0, 1):
                self.wrong.append(paused.stderr + resumed.stderr)
            elif resumed.returncode == 0 and program.ask("check") != "7":
                self.wrong.append("contents differ")
        program.kill()

    def run(self, beside: str) -> None:
        begin = time.monotonic()
        threads = [threading.Thread(target=self.thread) for _ in range(PROGRAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(
            f"\n| {beside} | {self.lost} of {self.made} lost | {self.refused} refused for lack of "
            f"room, {self.unmade} not checkpointed | {time.monotonic() - begin:.0f} s |"
        )
        assert not self.wrong, self.wrong[0]


def test_beside_a_neighbour_that_tms_steers(place: dict[str, str], ballast: Program) -> None:
    """All programs and the neighbour do not fit together, so that each waits for others."""
    first = Program(place, ROOM)
    first.ask(f"hold {64 * MiB}")
    first.must("pause", first.pid, "--everything")
    one = first.taken() + 64 * MiB
    first.kill()
    neighbour = Program(place, ROOM)
    neighbour.ask(f"hold {2 * one}")
    neighbour.must("pause", neighbour.pid)
    waiting = threading.Event()

    def steer() -> None:
        while not waiting.is_set():
            neighbour.tms("resume", neighbour.pid, "--wait", "5")
            neighbour.must("pause", neighbour.pid)

    # Room for all programs to start, but not for the neighbour beside them.
    ballast.ask(f"fill {(PROGRAMS + 1) * one}")
    steering = threading.Thread(target=steer)
    count = Count(place, up=steering.start)
    try:
        count.run("a neighbour that tms pauses and resumes")
    finally:
        waiting.set()
        steering.join()
        neighbour.kill()
    assert count.lost == 0


def test_beside_one_that_takes_all_memory(place: dict[str, str]) -> None:
    storm = Program(place, ROOM, steered=False)
    raging = threading.Lock()

    def quiet(now: bool) -> None:
        with raging:
            storm.ask("calm" if now else "storm 0.3")

    count = Count(place, quiet, hostile=True)
    try:
        count.run("one that takes and gives all free memory at random")
    finally:
        storm.kill()
