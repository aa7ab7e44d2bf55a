"""Restores by the driver beside a program that takes all free memory, begun in five ways.

    scripts/bench.sh restore [SECONDS]

A restore that finds too little memory loses the process, and another program can take the memory
between the look and the driver's own allocation. Five ways to begin a restore take turns at
random, each beside the same storm (pymodule/tests/gpu/programs/room.py):

- look: as soon as NVML shows enough free memory;
- hold: the memory is taken (cuMemCreate), held by a descriptor, and given back just before;
- settle: the same, but it is given back when others have taken the rest, or after a second;
- late: it is given back in the restore, half as late as the driver took memory in the calm. tms may
  not do that: no driver says when it takes memory, and too late loses the process.

- drip: as look, but some more memory is held in the restore, and given back piece by piece once
  others have taken all that is free, for what the driver takes late.

Before, without a storm: what holding costs, and when a restore takes its memory (the window in
which it can be lost). Nothing else may use the GPU, the first of CUDA_VISIBLE_DEVICES. Tables are
printed as they come; SECONDS (120) is for the storm.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_uint64
from multiprocessing.pool import AsyncResult
from pathlib import Path

import usage  # noqa: F401

ROOM = Path(__file__).parents[2] / "pymodule" / "tests" / "gpu" / "programs" / "room.py"
MiB = 1 << 20
MARGIN = 64 * MiB  # as tms wants, beside what a restore needs
PROGRAMS = int(os.environ.get("ROOM_PROGRAMS", "24"))
LONGEST = os.environ.get("ROOM_STORM", "0.3")  # seconds
ALL_WAYS = ("look", "hold", "settle", "late", "drip")
WAYS = tuple(os.environ.get("ROOM_WAYS", " ".join(ALL_WAYS)).split())
DRIP, PIECE, LEAST = 16, 2 * MiB, 8 * MiB  # held pieces; one is given back when less is free
INDEX = int(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])
OUT_OF_MEMORY = 2

try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"restore: {error}; this benchmark needs a GPU")


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Device:
    """By NVML, as tms looks."""

    def __init__(self) -> None:
        self.nvml, self.handle, self.memory = (
            ctypes.CDLL("libnvidia-ml.so.1"),
            ctypes.c_void_p(),
            Memory(),
        )
        self.memory.version = ctypes.sizeof(Memory) | 2 << 24
        assert self.nvml.nvmlInit_v2() == 0
        assert self.nvml.nvmlDeviceGetHandleByIndex_v2(INDEX, byref(self.handle)) == 0

    def name(self) -> str:
        name = ctypes.create_string_buffer(96)
        assert self.nvml.nvmlDeviceGetName(self.handle, name, len(name)) == 0
        return name.value.decode()

    def free(self) -> int:
        assert self.nvml.nvmlDeviceGetMemoryInfo_v2(self.handle, byref(self.memory)) == 0
        return int(self.memory.free)


class LockArguments(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (
        ("timeout", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
        ("more", ctypes.c_ulonglong * 7),
    )


def checkpoint(pid: int) -> int:
    """The first code of the driver's that is not 0."""
    return int(
        driver.cuCheckpointProcessLock(pid, byref(LockArguments(10000)))
        or driver.cuCheckpointProcessCheckpoint(pid, None)
    )


class Program:
    def __init__(self, hold: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid, self.bytes = self.process.pid, hold

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, words: str) -> str:
        assert self.process.stdin is not None
        print(words, file=self.process.stdin, flush=True)
        return self.answer()

    def up(self) -> Program:
        """Waits for its start."""
        assert self.answer() == "ready"
        if self.bytes:
            assert self.ask(f"hold {self.bytes}") == "done"
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", c_uint64),
    )


def held(size: int) -> int:
    """A descriptor of so much memory; below 0: the driver's code."""
    wanted, handle, descriptor = (
        Properties(1, 1, Location(1, 0), None, 0),
        c_uint64(),
        ctypes.c_int(),
    )
    code = driver.cuMemCreate(byref(handle), c_size_t(size), byref(wanted), c_uint64(0))
    if code:
        return -int(code)
    code = driver.cuMemExportToShareableHandle(byref(descriptor), handle, 1, c_uint64(0))
    driver.cuMemRelease(handle)
    return -int(code) if code else descriptor.value


class Drip(threading.Thread):
    """Holds memory that no restore needs, and sees to it that the driver finds some to the end."""

    def __init__(self, pieces: list[int]) -> None:
        super().__init__(daemon=True)
        self.pieces, self.device, self.ends, self.given = pieces, Device(), False, 0

    def run(self) -> None:
        while not self.ends and self.pieces:
            if self.device.free() < LEAST:
                os.close(self.pieces.pop())
                self.given += 1
            else:
                time.sleep(0.0005)

    def end(self) -> None:
        self.ends = True
        self.join()
        for piece in self.pieces:
            os.close(piece)


def rounded(need: int) -> int:
    """With the margin, in whole granules."""
    return (need + MARGIN) // (2 * MiB) * 2 * MiB


def milliseconds(begin: float) -> str:
    return f"{1e3 * (time.perf_counter() - begin):.2f} ms"


def cost(device: Device, size: int) -> None:
    """Prints what it takes to hold memory, and makes the context that it needs."""
    before, begin = device.free(), time.perf_counter()
    assert driver.cuInit(0) == 0
    print(f"\n{device.name()}\ncuInit: {milliseconds(begin)}")
    descriptor = held(size)
    print(f"cuMemCreate without a context: {'works' if descriptor >= 0 else -descriptor}")
    if descriptor >= 0:
        os.close(descriptor)
    context, begin = ctypes.c_void_p(), time.perf_counter()
    assert driver.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
    print(f"a context: {milliseconds(begin)}, {(before - device.free()) // MiB} MiB of the device")
    assert driver.cuCtxSetCurrent(context) == 0
    before, begin = device.free(), time.perf_counter()
    descriptor = held(size)
    took = milliseconds(begin)
    print(f"{size // MiB} MiB held: {took}, {(before - device.free()) // MiB} MiB gone")
    begin = time.perf_counter()
    os.close(descriptor)
    print(f"closed: {milliseconds(begin)}", end="")
    while device.free() < before - MiB and time.perf_counter() < begin + 5:
        pass
    print(f"; NVML shows it free after {milliseconds(begin)}")


class Watch(threading.Thread):
    """Notes what is free, as often as NVML can say it."""

    def __init__(self, device: Device) -> None:
        super().__init__(daemon=True)
        self.device, self.seen, self.ends = device, list[tuple[float, int]](), False

    def run(self) -> None:
        while not self.ends:
            self.seen.append((time.perf_counter(), self.device.free()))

    def end(self) -> None:
        self.ends = True
        self.join()


def spread(seconds: Sequence[float]) -> str:
    shown = statistics.median(seconds), min(seconds), max(seconds)
    return "{:.0f} ({:.0f} to {:.0f})".format(*(1e3 * s for s in shown))


def windows(device: Device, size: int, way: str) -> tuple[int, float]:
    """Prints when restores of one program take memory; returns how much, and the soonest."""
    program, rows, need, steps = Program(size).up(), list[tuple[float, ...]](), 0, ""
    for _ in range(6):
        before = device.free()
        assert checkpoint(program.pid) == 0
        need = max(need, device.free() - before)
        before, memory = device.free(), held(rounded(need)) if way == "hold" else -1
        watch = Watch(Device())
        watch.start()
        while not watch.seen:
            time.sleep(0.001)
        begin = time.perf_counter()
        if memory >= 0:
            os.close(memory)
        assert driver.cuCheckpointProcessRestore(program.pid, None) == 0
        end = time.perf_counter()
        watch.end()
        assert driver.cuCheckpointProcessUnlock(program.pid, None) == 0
        assert program.ask("check") == "7"
        seen = [(at, before - free) for at, free in watch.seen if begin <= at <= end]
        while memory >= 0 and seen and seen[0][1] > MiB:
            del seen[0]  # NVML shows what was closed
        total = seen[-1][1] if seen else 0
        first = next((at for at, taken in seen if taken > MiB), end)
        last = next((at for at, taken in seen if taken > total - 4 * MiB), end)
        rows.append((first - begin, last - begin, end - begin))
        now, steps = 0, ""
        for at, taken in seen:
            if abs(taken - now) > MiB:
                steps, now = f"{steps} {1e3 * (at - begin):.1f}:{taken // MiB}", taken
    program.kill()
    columns = " | ".join(map(spread, zip(*rows)))
    print(f"| {size // MiB} MiB | {way} | {need // MiB} MiB | {columns} |{steps} |", flush=True)
    return need, min(row[0] for row in rows)


class Storm:
    """Restores beside a program that takes and gives all free memory, one after another."""

    def __init__(self, device: Device, need: int, delay: float, until: float) -> None:
        self.device, self.need, self.delay, self.until = device, need, delay, until
        self.storm = Program(0).up()
        self.made, self.lost = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0)
        self.unmade, self.given, self.waits = 0, 0, {way: list[float]() for way in WAYS}

    def wait(self, way: str) -> int:
        """Waits until a restore may begin; returns what is to be closed then."""
        while time.monotonic() < self.until:
            if way in ("look", "drip"):
                if self.device.free() >= self.need + MARGIN + DRIP * PIECE * (way == "drip"):
                    return -1
            else:
                memory = held(rounded(self.need))
                if memory >= 0:
                    late = time.monotonic() + 1
                    while (
                        way == "settle" and self.device.free() > MARGIN and time.monotonic() < late
                    ):
                        time.sleep(0.001)
                    return memory
            time.sleep(0.005)
        return -2

    def restore(self, program: Program) -> bool:
        """Reports whether the program has come back."""
        way = random.choice(WAYS)
        begin = time.monotonic()
        memory = self.wait(way)
        if memory == -2:
            return False
        self.waits[way].append(time.monotonic() - begin)
        pieces = [held(PIECE) for _ in range(DRIP)] if way == "drip" else []
        drip = Drip([piece for piece in pieces if piece >= 0])
        drip.start()
        later = threading.Timer(self.delay, os.close, (memory,))
        if way == "late":
            later.start()
        elif memory >= 0:
            os.close(memory)
        code = driver.cuCheckpointProcessRestore(program.pid, None)
        if way == "late":
            later.join()
        drip.end()
        self.given += drip.given
        self.made[way] += 1
        self.lost[way] += code == OUT_OF_MEMORY
        if code not in (0, OUT_OF_MEMORY):
            print(f"{way}: cuCheckpointProcessRestore returned {code}")
        if sum(self.made.values()) % 50 == 0:
            self.tell()
        if code or driver.cuCheckpointProcessUnlock(program.pid, None):
            return False
        came = program.ask("check") == "7"
        if not came:
            print(f"{way}: contents differ")
        return came

    def round(self, pool: multiprocessing.pool.Pool) -> None:
        """Starts programs in the calm, and restores them in the storm until they are used up."""
        programs = [Program(64 * MiB) for _ in range(PROGRAMS)]
        away = deque[tuple[Program, AsyncResult[int]]]()
        for program in programs:
            away.append((program.up(), pool.apply_async(checkpoint, (program.pid,))))
        for _, done in away:
            assert done.get() == 0
        self.storm.ask(f"storm {LONGEST}")
        while away and time.monotonic() < self.until:
            program, done = away.popleft()
            if done.get():
                self.unmade += 1  # the checkpoint itself found no memory
                program.kill()
            elif self.restore(program):
                away.append((program, pool.apply_async(checkpoint, (program.pid,))))
            else:
                program.kill()
        for program in programs:
            program.kill()
        self.storm.ask("calm")

    def tell(self) -> None:
        print("\n| way | restores | lost | waited, s |\n| --- | --- | --- | --- |")
        for way in WAYS:
            waited = statistics.median(self.waits[way] or [0])
            print(f"| {way} | {self.made[way]} | {self.lost[way]} | {waited:.2f} |")
        print(f"{self.unmade} not checkpointed; {self.given} pieces dripped", flush=True)


def main() -> None:
    try:
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        sys.exit(f"restore: SECONDS is {sys.argv[1]!r}; it takes a number above 0")
    if not WAYS or not set(WAYS) <= set(ALL_WAYS):
        sys.exit(
            f"restore: ROOM_WAYS is {' '.join(WAYS)!r}; it takes some of: {' '.join(ALL_WAYS)}"
        )
    device = Device()
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        cost(device, 600 * MiB)
        print("\n| allocated | way | needed | takes from, ms | to | restored | at ms: MiB taken |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        figures = [
            windows(device, size * MiB, way)
            for size in map(int, os.environ.get("ROOM_SIZES", "64 4096").split())
            for way in ("look", "hold")
        ]
        need, delay = figures[0][0], min(figures[0][1], figures[1][1]) / 2
        storm = Storm(device, need, delay, time.monotonic() + seconds)
        try:
            while time.monotonic() < storm.until:
                storm.round(pool)
        finally:
            storm.tell()
            storm.storm.kill()


if __name__ == "__main__":
    main()
