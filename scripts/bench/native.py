"""Replays a trace on PyTorch's own allocator, for comparison with tms replay.

    python3 native.py TRACE

Prints a JSON object. The trace has been played before, so its segments are there: what is timed
is the allocator and not cudaMalloc. A compiled loop calls it where there is g++; else a Python loop
does, from which the time of the same loop over functions that do nothing is taken off.
"""

from __future__ import annotations

import array
import csv
import ctypes
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

import usage  # noqa: F401

MEASURING = 0.5  # seconds; the fastest pass counts


class Trace:
    """The operations of a trace: a size and a block number to allocate, 0 and that to free."""

    def __init__(self, path: str) -> None:
        self.sizes = array.array("Q")
        self.blocks = array.array("I")
        self.most = 0
        live: dict[str, int] = {}
        with open(path, "rb") as raw:
            data = gzip.decompress(raw.read()) if path.endswith(".gz") else raw.read()
        for row in csv.DictReader(io.StringIO(data.decode())):
            size = int(row["Size"])
            if row["Action"] == "allocate" and size:
                self.most += 1
                live[row["Pointer"]] = self.most
                self.add(size, self.most)
            elif row["Action"] == "free" and row["Pointer"] in live:
                self.add(0, live.pop(row["Pointer"]))

    def add(self, size: int, block: int) -> None:
        self.sizes.append(size)
        self.blocks.append(block)


def compiled(torch: Any, trace: Trace, device: int) -> Callable[[], float]:
    """A pass in nanoseconds. Errors: OSError, CalledProcessError without a compiler that can."""
    root = os.path.dirname(torch.__file__)
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native.cpp")
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "native.so")
        command = ["g++", "-O2", "-shared", "-fPIC", "-o", library, source]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        command += ["-isystem", os.path.join(root, "include"), "-L", os.path.join(root, "lib")]
        for standard in ("-std=c++20", "-std=c++17"):
            done = subprocess.run([*command, standard, "-lc10"], capture_output=True, text=True)
            if done.returncode == 0:
                break
        else:
            raise OSError(done.stderr[-2000:])
        play = ctypes.CDLL(library).native_play
    play.restype = ctypes.c_double
    count = len(trace.sizes)
    sizes = (ctypes.c_uint64 * count).from_buffer(trace.sizes)
    blocks = (ctypes.c_uint32 * count).from_buffer(trace.blocks)

    def once() -> float:
        took = play(device, sizes, blocks, ctypes.c_uint64(count), ctypes.c_uint32(trace.most))
        if took < 0:
            raise MemoryError("the allocator refused the trace")
        return float(took)

    return once


def interpreted(torch: Any, trace: Trace) -> Callable[[], float]:
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    delete = torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream

    def loop(allocate: Callable[[int, int], int], delete: Callable[[int], object]) -> float:
        at = [0] * (trace.most + 1)
        begin = time.perf_counter_ns()
        for size, block in zip(trace.sizes, trace.blocks):
            if size:
                at[block] = allocate(size, stream)
            else:
                delete(at[block])
                at[block] = 0
        took = time.perf_counter_ns() - begin
        for address in at:
            if address:
                delete(address)
        return took

    return lambda: loop(allocate, delete) - loop(max, abs)


def fastest(once: Callable[[], float]) -> float:
    once()
    best, begin = once(), time.perf_counter()
    while time.perf_counter() - begin < MEASURING:
        best = min(best, once())
    return best


def measure(torch: Any, path: str) -> dict[str, Any]:
    trace = Trace(path)
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        once, how = compiled(torch, trace, 1), "compiled loop"  # 1: c10::DeviceType::CUDA
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"native: no compiled loop: {error}", file=sys.stderr)
        once, how = interpreted(torch, trace), "Python loop less its own time"
    took = fastest(once)
    return {
        "trace": path,
        "torch": torch.__version__,
        "how": how,
        "operations": len(trace.sizes),
        "ns_per_op": took / max(len(trace.sizes), 1),
        "peak_live_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> None:
    import torch

    print(json.dumps(measure(torch, sys.argv[1])))


if __name__ == "__main__":
    main()
