"""The driver's own checkpoint of another process, as cuda-checkpoint makes it: times in seconds.

Called with a pid: locks and checkpoints it, prints {"out": seconds}, waits for a line on standard
input, restores and unlocks it, prints {"back": seconds}. A driver that cannot prints {"refused":
words}.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any


class Refused(Exception):
    """The driver has no such function, or refuses."""


def call(driver: Any, name: str, pid: int) -> None:
    if not hasattr(driver, name):
        raise Refused(f"the driver has no {name}")
    arguments = (ctypes.c_uint64 * 32)()  # zeros are the defaults of all fields
    code = driver[name](ctypes.c_int(pid), arguments)
    if code != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise Refused(f"{name}: {code} ({(text.value or b'').decode()})")


def timed(driver: Any, pid: int, *names: str) -> float:
    begin = time.monotonic()
    for name in names:
        call(driver, "cuCheckpointProcess" + name, pid)
    return time.monotonic() - begin


def main() -> None:
    pid, driver = int(sys.argv[1]), ctypes.CDLL("libcuda.so.1")
    try:
        if driver.cuInit(0) != 0:
            raise Refused("cuInit failed")
        print(json.dumps({"out": timed(driver, pid, "Lock", "Checkpoint")}), flush=True)
        sys.stdin.readline()
        print(json.dumps({"back": timed(driver, pid, "Restore", "Unlock")}), flush=True)
    except Refused as refused:
        print(json.dumps({"refused": str(refused)}), flush=True)


if __name__ == "__main__":
    main()
