"""Uses the device by CUDA's driver alone, for test_restore_room.py. It reads steps, one a line:

- hold BYTES: allocates them, and writes there.
- fill BYTES: takes memory until no more than so much is free on the device; answers what is.
- free: gives back what it has taken.
- check: answers the last byte that hold wrote.
- storm SECONDS: from now on, takes all free memory and gives it back, each for up to so long.
- calm: ends the storm.
"""

from __future__ import annotations

import ctypes
import random
import sys
import threading
import time
from ctypes import byref, c_size_t, c_uint64

driver = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
MiB = 1 << 20


def call(name: str, *arguments: object) -> None:
    code = getattr(driver, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} returned {code}")


def enter() -> None:
    call("cuCtxSetCurrent", context)


def free_bytes() -> int:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value


def take(size: int) -> int:
    """An address, or 0."""
    address = c_uint64()
    return 0 if driver.cuMemAlloc_v2(byref(address), c_size_t(size)) else address.value


def fill(least: int) -> list[int]:
    """Takes all above so much, in pieces that grow smaller."""
    taken, size = [], 1 << 40
    while size >= 2 * MiB:
        size = min(size, max(0, free_bytes() - least) // (2 * MiB) * 2 * MiB)
        address = take(size) if size else 0
        if address:
            taken.append(address)
        else:
            size //= 2
    return taken


class Storm(threading.Thread):
    """Takes and gives all free memory, at random."""

    def __init__(self, longest: float) -> None:
        super().__init__(daemon=True)
        self.longest, self.ends = longest, False

    def run(self) -> None:
        enter()
        while not self.ends:
            taken = fill(0)
            time.sleep(random.uniform(0, self.longest))
            for address in taken:
                driver.cuMemFree_v2(c_uint64(address))
            time.sleep(random.uniform(0, self.longest))


def main() -> None:
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    enter()
    held, taken, storm = (0, 0), list[int](), Storm(0)
    print("ready", flush=True)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        answer = "done"
        if word == "hold":
            held = take(int(number)), int(number)
            call("cuMemsetD8_v2", c_uint64(held[0]), 7, c_size_t(held[1]))
        elif word == "fill":
            taken += fill(int(number))
            answer = str(free_bytes())
        elif word == "free":
            while taken:
                call("cuMemFree_v2", c_uint64(taken.pop()))
        elif word == "check":
            last = ctypes.c_ubyte()
            call("cuMemcpyDtoH_v2", byref(last), c_uint64(held[0] + held[1] - 1), c_size_t(1))
            answer = str(last.value)
        elif word == "storm":
            storm = Storm(float(number))
            storm.start()
        elif word == "calm" and storm.is_alive():
            storm.ends = True
            storm.join()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
