"""PyTorch's pools around pauses, where a write to paused memory ends the context."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from device import output, torch_on_gpu
from simulator import BUILD

torch = torch_on_gpu()

PRELUDE = """
import gc, threading, torch, tms
from torch_memory_saver import torch_memory_saver as saver
MiB = 1 << 20
def full(mib, value): return torch.full((mib * MiB,), value, dtype=torch.uint8, device="cuda")
def holds(tensor, value): return bool((tensor == value).all())
"""
ALL = {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}

PROGRAMS = {
    "a region while its tag is paused": """
with tms.region("w", backup="host"): a, b = full(64, 1), full(64, 2)
del a
tms.pause("w")
with tms.region("w", backup="host"): c = full(64, 3)
torch.cuda.synchronize()
tms.resume("w")
assert holds(b, 2) and holds(c, 3)
""",
    "a pool of the program's own": """
pool = torch.cuda.MemPool()
with tms.region("cache"), torch.cuda.use_mem_pool(pool): a = full(64, 1)
del a
with torch.cuda.use_mem_pool(pool): b = full(64, 2)
torch.cuda.synchronize()
tms.pause("cache")
tms.resume("cache")
assert holds(b, 2)
""",
    "a pool that dies in a region": """
def made():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool): x = full(64, 1)
    x.record_stream(torch.cuda.Stream())
    return pool
pool = made()
with tms.region("w"):
    del pool
    gc.collect()
    full(1, 1)
pool, inside, go = made(), threading.Event(), threading.Event()
def other():
    with tms.region("w"): full(1, 1); inside.set(); go.wait()
thread = threading.Thread(target=other)
thread.start()
inside.wait()
del pool
gc.collect()
go.set()
thread.join()
""",
    "calls while everything is paused": """
with tms.region("w", backup="host"): t = full(8, 1)
torch.cuda.synchronize()
tms.empty_cache()
tms.pause(everything=True)
assert tms.pause() == tms.pause("w") == 0
for call in (lambda: tms.pool("caching"), tms.trim, lambda: tms.pause(discard=True)):
    try: call()
    except tms.TmsError: pass
    else: raise AssertionError
tms.resume()
assert holds(t, 1)
""",
}

EVERYWHERE = {
    "outside all regions": """
a, b = full(64, 1), torch.ones(1000, device="cuda")
del a
tms.pause()
c, d = full(32, 3), torch.ones(100, device="cuda")
torch.cuda.synchronize()
tms.resume()
assert holds(b, 1) and holds(c, 3) and holds(d, 1)
""",
    "a finalizer, a signal handler, and what leaving costs": """
import signal, time
class Engine:
    def __init__(self): self.me = self
    def __del__(self): tms.empty_cache()
signal.signal(signal.SIGALRM, lambda *_: tms.empty_cache())
live = [torch.empty(256, device="cuda") for _ in range(50_000)]
end = time.monotonic() + 5
while time.monotonic() < end:
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    with saver.disable():
        x = full(1, 1)
        Engine()
    del x
signal.setitimer(signal.ITIMER_REAL, 0)
def leave():
    begin = time.perf_counter()
    with saver.disable(): pass
    return time.perf_counter() - begin
cost = min(leave() for _ in range(20))
print(f"leaving disable() takes {cost * 1e3:.2f} ms")
assert cost < 0.01
""",
}


@pytest.mark.parametrize("name", [*PROGRAMS, *EVERYWHERE])
def test_pools(name: str) -> None:
    code = {**PROGRAMS, **EVERYWHERE}[name]
    print(output(PRELUDE + code, **(ALL if name in EVERYWHERE else {})))


CACHES = """
import os, time, torch
live = torch.randn(256 << 20, device="cuda")
for _ in range(2):
    temporary = [torch.randn(256 << 20, device="cuda") for _ in range(8)]
    torch.cuda.synchronize()
    del temporary
print("ready", flush=True)
while True:
    live.mul_(1.0)
    torch.cuda.synchronize()
    time.sleep(0.01)
"""


def test_a_pause_by_pid_saves_no_cache(tmp_path: Path) -> None:
    """1 GiB is in use, and 8 GiB are cached."""
    tms = str(BUILD / "bin" / "tms")
    command = [tms, "run", "--", sys.executable, "-c", CACHES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "ready\n"
        begin = time.perf_counter()
        subprocess.run([tms, "pause", str(process.pid)], check=True)
        took = time.perf_counter() - begin
        said = subprocess.run(
            [tms, "ps", str(process.pid), "--json"], check=True, capture_output=True, text=True
        ).stdout
        saved = sum(_values(json.loads(said), "host_bytes"))
        print(f"the pause took {took:.2f} s, and saved {saved >> 20} MiB")
        assert saved <= 2 << 30
        subprocess.run([tms, "resume", str(process.pid)], check=True)
    finally:
        process.kill()
        process.wait()


def _values(found: object, name: str) -> list[int]:
    if isinstance(found, list):
        return [value for each in found for value in _values(each, name)]
    if isinstance(found, dict):
        own = [found[name]] if isinstance(found.get(name), int) and "tag" in found else []
        return own + [value for each in found.values() for value in _values(each, name)]
    return []
