"""Tests of what a program does when its device is full, a call fails, or it is killed in a call.

scripts/build-sim.sh build/sim
LD_LIBRARY_PATH=$PWD/build/sim python -m pytest docs/examples/test_without_gpu.py
"""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import ctypes
runtime = ctypes.CDLL("libcudart.so.13")
for mebibytes in 1, 32, 64:
    address = ctypes.c_void_p()
    print(runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(mebibytes << 20)), flush=True)
"""


def run(**simulator: str) -> tuple[list[str], int]:
    """Runs the program on a simulator of its own. Returns each cudaMalloc's code and the status."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **simulator},
        stdout=subprocess.PIPE,
        text=True,
    )
    return result.stdout.split(), result.returncode


def test_it_fits() -> None:
    assert run(CUDASIM_MEMORY="128M") == (["0", "0", "0"], 0)


def test_the_device_is_full() -> None:
    assert run(CUDASIM_MEMORY="64M") == (["0", "0", "2"], 0)  # cudaErrorMemoryAllocation


def test_the_second_allocation_fails() -> None:
    assert run(CUDASIM_FAIL="cuMemAlloc:2:2") == (["0", "2", "0"], 0)


def test_it_is_killed_in_the_second_allocation() -> None:
    assert run(CUDASIM_FAIL="cuMemAlloc:2:kill") == (["0"], -9)
