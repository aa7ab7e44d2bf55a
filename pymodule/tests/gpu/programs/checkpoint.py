"""The driver's own checkpoint of another process, as cuda-checkpoint makes it: times in seconds.

Called with a pid: locks and checkpoints it, prints {"out": seconds}, waits for a line on standard
input, restores and unlocks it, prints {"back": seconds}. Pairs OLD=NEW of the UUIDs of all GPUs,
behind the pid, say where to restore it. A driver that cannot prints {"refused": words}.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import uuid
from typing import Any


class Refused(Exception):
    """The driver has no such function, or refuses."""


def call(driver: Any, name: str, pid: int, pairs: bytes = b"") -> None:
    if not hasattr(driver, name):
        raise Refused(f"the driver has no {name}")
    arguments = (ctypes.c_uint64 * 32)()  # zeros are the defaults of all fields
    if pairs:  # of a CUcheckpointRestoreArgs
        held = ctypes.create_string_buffer(pairs)
        arguments[0], arguments[1] = ctypes.addressof(held), len(pairs) // 32
    code = driver[name](ctypes.c_int(pid), arguments)
    if code != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        raise Refused(f"{name}: {code} ({(text.value or b'').decode()})")


def main() -> None:
    pid, driver = int(sys.argv[1]), ctypes.CDLL("libcuda.so.1")
    gpus = [gpu for pair in sys.argv[2:] for gpu in pair.split("=")]
    pairs = b"".join(uuid.UUID(gpu.removeprefix("GPU-")).bytes for gpu in gpus)
    try:
        if driver.cuInit(0) != 0:
            raise Refused("cuInit failed")
        begin = time.monotonic()
        call(driver, "cuCheckpointProcessLock", pid)
        call(driver, "cuCheckpointProcessCheckpoint", pid)
        print(json.dumps({"out": time.monotonic() - begin}), flush=True)
        sys.stdin.readline()
        begin = time.monotonic()
        call(driver, "cuCheckpointProcessRestore", pid, pairs)
        call(driver, "cuCheckpointProcessUnlock", pid)
        print(json.dumps({"back": time.monotonic() - begin}), flush=True)
    except Refused as refused:
        print(json.dumps({"refused": str(refused)}), flush=True)


if __name__ == "__main__":
    main()
