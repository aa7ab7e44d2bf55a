"""Two programs that change places on a GPU, beside one after the other, and the link's own limit.

    scripts/bench.sh duplex [GIB] [REPETITIONS]

Two programs have GIB (15) of contents each, in allocations of 64 MiB, on a GPU where other memory
is held until one of them fits and both do not. They change places REPETITIONS (10) times by `tms
swap`, and as often by `tms pause` and then `tms resume`; first as they are, then with host memory
that is reserved (`tms kept reserve`). Then two programs of `tms run --share` want the GPU in turn,
and the time is that of the call that has waited. All contents are compared at the end of each of
these, and a sample of each allocation after each change. The limit is that of plain copies between
the GPU and pinned host memory, both ways at once, of as many bytes. Prints a table, and last, JSON.
It needs no PyTorch, and runs on the simulator, too, which says nothing about time:

    export LD_LIBRARY_PATH=build/sim CUDASIM_SHARED=duplex CUDASIM_MEMORY=1G
    scripts/bench.sh duplex 0.25 2
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import usage  # noqa: F401

ROOT = Path(__file__).parents[2]
TMS = str(ROOT / "build" / "bin" / "tms")
GIB, MIB = 1 << 30, 1 << 20
SPARE = 2 * GIB  # left free beside the program that is on the device, for contexts as well


class Cuda:
    """The driver's functions; a failure is an error."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    def allocate(self, size: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def pinned(self, size: int) -> int:
        address = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(size), 0)
        assert address.value
        return address.value

    def to_device(self, to: int, source: int, size: int) -> None:
        self.call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(to), ctypes.c_void_p(source), ctypes.c_size_t(size)
        )

    def to_host(self, to: int, source: int, size: int) -> None:
        self.call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(to), ctypes.c_uint64(source), ctypes.c_size_t(size)
        )

    def free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value


class Contents:
    """Allocations full of numbers that are drawn, and differ in each MiB of each."""

    def __init__(self, cuda: Cuda, seed: int, size: int, piece: int) -> None:
        self.cuda, self.seed, self.piece = cuda, seed, piece
        self.drawn = random.Random(seed).randbytes(piece)
        self.host, self.back = cuda.pinned(piece), cuda.pinned(piece)
        self.compare = ctypes.CDLL(None).memcmp
        ctypes.memmove(self.host, self.drawn, piece)
        self.pieces = []
        for number in range(size // piece):
            self.pieces.append(cuda.allocate(piece))
            self.stamp(number)
            cuda.to_device(self.pieces[number], self.host, piece)

    def stamp(self, number: int) -> None:
        for at in range(0, self.piece, MIB):
            ctypes.c_uint64.from_address(self.host + at).value = (
                self.seed << 32 | number << 16 | at // MIB
            )

    def check(self, whole: bool) -> None:
        for number, address in enumerate(self.pieces):
            self.stamp(number)
            begin, size = 0, self.piece
            if not whole:
                size = min(64 << 10, size)
                begin = random.randrange(0, self.piece - size + 1, 4096)
            self.cuda.to_host(self.back + begin, address + begin, size)
            same = self.compare(
                ctypes.c_void_p(self.back + begin),
                ctypes.c_void_p(self.host + begin),
                ctypes.c_size_t(size),
            )
            assert same == 0, f"allocation {number} of program {self.seed} is not as it was"


def program(seed: int, size: int, piece: int) -> None:
    """Has contents, and answers the lines of its standard input."""
    cuda = Cuda()
    contents = Contents(cuda, seed, size, piece)
    word = ctypes.c_uint64()
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        cuda.to_host(ctypes.addressof(word), contents.pieces[0] + MIB // 2, 8)
        waited = time.perf_counter() - start
        if not line.startswith("touch"):
            contents.check(line.startswith("whole"))
        print(waited, flush=True)


def hog(spare: int) -> None:
    """Takes all memory of the device but some."""
    cuda = Cuda()
    if (size := cuda.free() - spare) > 0:
        cuda.allocate(size)
    print("ready", flush=True)
    sys.stdin.read()


def limit(size: int) -> None:
    """Copies size bytes between the device and pinned memory: out, in, and both at once."""
    cuda = Cuda()
    part = min(size, 2 * GIB)
    streams = [ctypes.c_void_p(), ctypes.c_void_p()]
    for stream in streams:
        cuda.call("cuStreamCreate", ctypes.byref(stream), 1)
    device, host = [cuda.allocate(part) for _ in streams], [cuda.pinned(part) for _ in streams]
    copies = {
        "out": ("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host[0]), ctypes.c_uint64(device[0])),
        "in": ("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(device[1]), ctypes.c_void_p(host[1])),
    }
    taken: dict[str, float] = {}
    for name in ("out", "in", "both") * 2:  # the first round warms up
        start = time.perf_counter()
        for _ in range(max(1, size // part)):
            for (way, (call, to, source)), stream in zip(copies.items(), streams):
                if name in (way, "both"):
                    cuda.call(call, to, source, ctypes.c_size_t(part), stream)
        for stream in streams:
            cuda.call("cuStreamSynchronize", stream)
        taken[name] = (time.perf_counter() - start) * size / (max(1, size // part) * part)
    print(json.dumps(taken), flush=True)


class Run:
    """This file, run again as one of the functions above."""

    def __init__(self, how: list[str], *words: object) -> None:
        self.words = " ".join(map(str, words))
        self.process = subprocess.Popen(
            [*how, sys.executable, __file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.words} ended with {self.process.wait()}")
        return line.strip()

    def ask(self, word: str) -> float:
        assert self.process.stdin
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return float(self.line())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(how: list[str], *words: object) -> Iterator[Run]:
    run = Run(how, *words)
    try:
        if words[0] != "limit":
            assert run.line() == "ready"
        yield run
    finally:
        run.end()


def tms(*words: object) -> Any:
    words = words if words[0] == "kept" else (*words, "--json")
    done = subprocess.run([TMS, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tms {' '.join(map(str, words))}: {done.stderr or done.stdout}")
    return words[0] == "kept" or json.loads(done.stdout)


def timed(what: str, out: Run, back: Run) -> tuple[float, float, float]:
    """The seconds of the commands, and of the pause and the resume as the processes say."""
    start = time.perf_counter()
    if what == "swap":
        said = tms("swap", out.process.pid, back.process.pid)
    else:
        said = tms("pause", out.process.pid) + tms("resume", back.process.pid)
    return time.perf_counter() - start, said[0]["seconds"], said[1]["seconds"]


def changes(repetitions: int, first: Run, second: Run) -> dict[str, list[tuple[float, ...]]]:
    """Has two programs change places, of which the first is on the device. Both ways take turns."""
    taken: dict[str, list[tuple[float, ...]]] = {"swap": [], "one after the other": []}
    for number in range(2 * repetitions):
        way = ("swap", "one after the other")[number // 2 % 2]
        taken[way].append(timed(way, first, second))
        second.ask("sample")
        time.sleep(0.5)  # in which host memory goes back that is not reserved
        first, second = second, first
    first.ask("whole")
    timed("swap", first, second)
    second.ask("whole")
    return taken


def turns(repetitions: int, first: Run, second: Run) -> list[tuple[float, ...]]:
    """Has two programs that share want the device in turn, and returns how long each has waited."""
    waits: list[tuple[float, ...]] = []
    for number in range(repetitions):
        time.sleep(0.1)  # the other has no work for 20 ms before it gives way
        one = (first, second)[number % 2]
        waits.append((one.ask("touch"),))
        one.ask("sample")
    return waits


def main(size: int, repetitions: int, piece: int) -> None:
    begin, spare = time.time(), min(SPARE, size // 4)
    seconds: dict[str, list[tuple[float, ...]]] = {}
    with running([], "limit", size) as copies:
        link = json.loads(copies.line())
    run = [TMS, "run", "--backup", "host", "--"]
    with running(run, "program", 1, size, piece) as first:
        tms("pause", first.process.pid)
        with running(run, "program", 2, size, piece) as second:
            with running([], "hog", spare):
                for name in ("its own host memory", "reserved host memory"):
                    if name.startswith("reserved"):
                        tms("kept", "reserve", f"{(2 * size >> 30) + 2}G")
                        timed("swap", second, first)  # what is not reserved goes
                        timed("swap", first, second)
                    for way, taken in changes(repetitions, second, first).items():
                        seconds[f"{way}, {name}"] = taken
                    timed("swap", first, second)
                    print(f"{name}: {time.time() - begin:.0f} s so far", file=sys.stderr)
            # a process that is killed while it is paused loses what is reserved
            tms("resume", first.process.pid)
    share = [TMS, "run", "--share", "--backup", "host", "--"]
    with (
        running(share, "program", 3, size, piece) as first,
        running([], "hog", spare),
        running(share, "program", 4, size, piece) as second,
    ):
        seconds["--share, reserved host memory"] = turns(repetitions, first, second)
        first.ask("whole")
        second.ask("whole")
    tms("kept", "reserve", "0")
    print(f"all: {time.time() - begin:.0f} s", file=sys.stderr)
    table(size, link, seconds)
    print(json.dumps({"bytes": size, "link": link, "seconds": seconds}))


def table(size: int, link: dict[str, float], seconds: dict[str, list[tuple[float, ...]]]) -> None:
    print(
        f"{size / GIB:g} GiB by plain copies: {link['out']:.3f} s out, {link['in']:.3f} in, "
        f"{link['both']:.3f} both at once\n"
    )
    print("| seconds | first | median | least | most | median to both | pause, resume: medians |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way, taken in seconds.items():
        later = [one[0] for one in taken[1:] or taken]
        median = statistics.median(later)
        within = ", ".join(f"{statistics.median(one):.3f}" for one in list(zip(*taken[1:]))[1:])
        print(
            f"| {way} | {taken[0][0]:.3f} | {median:.3f} | {min(later):.3f} | {max(later):.3f} "
            f"| x{median / link['both']:.2f} | {within} |"
        )


if __name__ == "__main__":
    parts: dict[str, Callable[..., None]] = {"program": program, "hog": hog, "limit": limit}
    if sys.argv[1:] and sys.argv[1] in parts:
        parts[sys.argv[1]](*map(int, sys.argv[2:]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("gib", nargs="?", type=float, default=15)
        parser.add_argument("repetitions", nargs="?", type=int, default=10)
        asked = parser.parse_args()
        whole = int(asked.gib * GIB)
        main(whole, asked.repetitions, min(64 * MIB, whole // 8))
