"""Publishes sets of memory that no process owns, attaches them and goes on to new versions, as it is told.

It answers each line of its standard input with a line.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import time

CHUNKS = (3 << 20, 1 << 20)
library, tms = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL), ctypes.CDLL(None)
library.cudaFree(None)
sets: dict[str, ctypes.c_void_p] = {}


def call(function: str, *arguments: object) -> None:
    if code := getattr(tms, function)(*arguments):
        tms.tms_last_error.restype = ctypes.c_char_p
        raise RuntimeError(f"{function}: {code}: {tms.tms_last_error().decode()}")


def malloc() -> str:
    """Allocates memory of no set, from which on a process listens."""
    call("cudaMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))
    return "ok"


def publish(name: str, value: str, seals: str = "") -> str:
    """Makes a version with one value in all bytes. With "open" it stays incomplete."""
    made, address = ctypes.c_void_p(), ctypes.c_void_p()
    call("tms_kept_create", ctypes.byref(made), name.encode(), ctypes.c_int(-1))
    for size in CHUNKS:
        call("tms_kept_add", made, ctypes.c_size_t(size), ctypes.byref(address))
        call("cudaMemset", address, int(value), ctypes.c_size_t(size))
    if seals != "open":
        call("tms_kept_seal", made, b"", ctypes.c_size_t(0))
    sets[f"{name}:made"] = made
    return "ok"


def seal(name: str) -> str:
    call("tms_kept_seal", sets[f"{name}:made"], b"", ctypes.c_size_t(0))
    return "ok"


def opened(name: str) -> str:
    """Opens a set without attaching it."""
    sets[name] = ctypes.c_void_p()
    call("tms_kept_open", ctypes.byref(sets[name]), name.encode())
    return "ok"


def attach(name: str) -> str:
    if name not in sets:
        opened(name)
    call("tms_kept_attach", sets[name])
    return "ok"


def advance(name: str) -> str:
    number, moved = ctypes.c_uint64(), ctypes.c_int()
    call("tms_kept_advance", sets[name], ctypes.byref(number), ctypes.byref(moved))
    return str(number.value)


def back(name: str) -> str:
    number, moved = ctypes.c_uint64(), ctypes.c_int()
    call("tms_kept_back", sets[name], ctypes.byref(number), ctypes.byref(moved))
    return str(number.value)


class Churn(threading.Thread):
    """Attaches a set and closes it, again and again."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self.name_of_set, self.ends, self.rounds, self.failures = name, False, 0, set()

    def run(self) -> None:
        while not self.ends:
            one = ctypes.c_void_p()
            try:
                call("tms_kept_open", ctypes.byref(one), self.name_of_set.encode())
                call("tms_kept_attach", one)
            except RuntimeError as error:
                if "everything of this process is paused" not in str(error):
                    self.failures.add(str(error))
            if one:
                call("tms_kept_close", one)
            self.rounds += 1


def churn(name: str) -> str:
    global churning
    churning = Churn(name)
    churning.start()
    return "ok"


def rounds(more: str) -> str:
    """Waits for that many more."""
    until = churning.rounds + int(more)
    while churning.rounds < until and churning.is_alive():
        time.sleep(0.001)
    return str(churning.is_alive())


def calm() -> str:
    churning.ends = True
    churning.join()
    return " ".join(churning.failures) or "ok"


def close(name: str) -> str:
    call("tms_kept_close", sets.pop(name))
    return "ok"


def value(name: str) -> str:
    """The value that all bytes have, and the version."""
    found: set[int] = set()
    for index, _ in enumerate(CHUNKS):
        address, size, device = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int()
        call(
            "tms_kept_chunk",
            sets[name],
            ctypes.c_size_t(index),
            ctypes.byref(address),
            ctypes.byref(size),
            ctypes.byref(device),
        )
        held = ctypes.create_string_buffer(size.value)
        call("cudaMemcpy", held, address, size, 2)
        found |= set(held.raw[: CHUNKS[index]])
    number = ctypes.c_uint64()
    call("tms_kept_version", sets[name], ctypes.byref(number))
    return f"{' '.join(map(str, found))} of version {number.value}"


def child(*line: str) -> str:
    """Has a child answer the line, which it starts first."""
    global children
    if "children" not in globals():
        children = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    children.stdin.write(" ".join(line) + "\n")
    children.stdin.flush()
    return children.stdout.readline().strip()


def main() -> None:
    for line in sys.stdin:
        what, *arguments = line.split()
        try:
            print(globals()[what](*arguments), flush=True)
        except RuntimeError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
