"""Another process on the device: reports what is free, and takes and uses memory for a while.

A line of JSON for each request on standard input, and one for each answer. {"op": "free"} answers
{"free": bytes, "total": bytes}. {"op": "use", "bytes": N, "seconds": S} takes N bytes, keeps them
filled for S seconds, and answers {"used": bytes, "wrong": words that had changed}.
"""

from __future__ import annotations

import json
import sys
import time
from ctypes import CDLL, byref, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

PIECE = 256 << 20  # bytes
driver: Any = CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    code = driver[name](*arguments)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


def memory() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


def pattern(number: int) -> int:
    return 0xA5A50000 + number


def is_filled(address: int, size: int, value: int) -> bool:
    """Whether the beginning, the middle and the end hold the value."""
    word = c_uint32()
    for offset in (0, size // 8 * 4, size - 4):
        call("cuMemcpyDtoH_v2", byref(word), c_uint64(address + offset), c_size_t(4))
        if word.value != value:
            return False
    return True


def use(size: int, seconds: float) -> dict[str, int]:
    pieces: list[tuple[int, int]] = []
    while size >= 4:
        piece = min(size, PIECE) // 4 * 4
        address = c_uint64()
        call("cuMemAlloc_v2", byref(address), c_size_t(piece))
        call("cuMemsetD32_v2", address, c_uint(pattern(len(pieces))), c_size_t(piece // 4))
        pieces.append((address.value, piece))
        size -= piece
    call("cuCtxSynchronize")
    time.sleep(seconds)
    wrong = sum(not is_filled(*piece, pattern(i)) for i, piece in enumerate(pieces))
    for of, _ in pieces:
        call("cuMemFree_v2", c_uint64(of))
    return {"used": sum(piece for _, piece in pieces), "wrong": wrong}


def main() -> None:
    call("cuInit", 0)
    context = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "use":
            answer = use(request["bytes"], request["seconds"])
        else:
            answer = dict(zip(("free", "total"), memory()))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
