"""PyTorch's own allocator on the simulator, by scripts/torch-simulator.sh."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from caches import KINDS, saves
from simulator import BUILD, DROPIN, HANGS, PYMODULE

if "TESTS_PYTORCH" not in os.environ:
    pytest.skip("this is for scripts/torch-simulator.sh", allow_module_level=True)

PRELUDE = """
import gc, threading, torch, tms
from torch_memory_saver import torch_memory_saver as saver
MiB = 1 << 20
def full(mib, value, device="cuda"):
    made = torch.empty(mib * MiB, dtype=torch.uint8, device=device)
    made.copy_(torch.full((mib * MiB,), value, dtype=torch.uint8))
    return made
def holds(tensor, value): return bool((tensor.cpu() == value).all())
def held():
    free, total = torch.cuda.mem_get_info()
    return (total - free) // MiB
"""


SIMULATOR = {
    "LD_LIBRARY_PATH": str(BUILD / "sim"),
    "CUDASIM_DEVICES": "2",
    "CUDASIM_MEMORY": str(2 << 30),
}
LIBRARIES = [os.environ["TESTS_STUBS"], str(BUILD / "sim" / "libcudart.so.13")]


def output(code: str, preloaded: bool = True, **variables: str) -> str:
    ours = [str(BUILD / "lib" / "libtms.so")] if preloaded else []
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(ours + LIBRARIES),
        "PYTHONPATH": f"{PYMODULE}:{DROPIN}",
        **SIMULATOR,
        **variables,
    }
    done = subprocess.run(
        [os.environ["TESTS_PYTORCH"], "-W", "ignore", "-c", PRELUDE + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_region_while_its_tag_is_paused() -> None:
    output("""
with tms.region("w", backup="host"): a, b = full(64, 1), full(64, 2)
del a
tms.pause("w")
with tms.region("w", backup="host"): c = full(64, 3)
assert holds(c, 3)
tms.resume("w")
assert holds(b, 2) and holds(c, 3)
with tms.region("w", backup="host"):
    d = full(64, 4)
    del d
    tms.pause("w")
    d = full(64, 5)
    assert holds(d, 5)
tms.resume("w")
assert holds(b, 2) and holds(c, 3) and holds(d, 5)
""")


def test_a_pause_where_everything_is_pausable() -> None:
    code = """
a, b = full(64, 1), torch.ones(1000).to("cuda")
del a
tms.pause()
c, d = full(32, 3), torch.ones(100).to("cuda")
assert holds(c, 3) and holds(d, 1)
before = held()
with saver.disable(): e = full(8, 4)
del e
tms.empty_cache()
assert held() == before
tms.resume()
assert holds(b, 1) and holds(c, 3) and holds(d, 1)
"""
    output(code, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")


def test_a_pool_of_the_programs_own() -> None:
    output("""
pool = torch.cuda.MemPool()
with tms.region("cache"), torch.cuda.use_mem_pool(pool): a = full(64, 1)
del a
with torch.cuda.use_mem_pool(pool): b = full(64, 2)
tms.pause("cache")
assert holds(b, 2)
""")


def test_a_pool_that_dies_while_a_thread_is_in_a_region() -> None:
    output("""
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool): full(64, 1)
inside, go = threading.Event(), threading.Event()
def other():
    with tms.region("w"):
        full(8, 1)
        inside.set()
        go.wait()
thread = threading.Thread(target=other)
thread.start()
inside.wait()
before = held()
del pool
gc.collect()
assert held() == before
go.set()
thread.join()
assert held() <= before - 64
""")


def test_a_thread_that_ends_in_a_region() -> None:
    output("""
made = []
def ends():
    tms.region("w").__enter__()
    made.append(full(8, 1))
for work in (ends, lambda: made.append(full(8, 2))):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
tms.pause("w")
assert holds(made[1], 2)
""")


def test_every_device_without_a_preload() -> None:
    code = """
saver.hook_mode = "torch"
saver._ensure_initialized()
made = []
with tms.region("w", backup="host"): made += [full(64, 1), full(64, 2, "cuda:1")]
torch.cuda.set_device(1)
with saver.region("w", enable_cpu_backup=True): made += [full(64, 3, "cuda:0"), full(64, 4)]
assert tms.pause() == 256 * MiB
tms.resume()
assert all(holds(each, value) for value, each in enumerate(made, 1))
"""
    output(code, preloaded=False)


def test_a_finalizer_and_what_leaving_costs() -> None:
    code = """
import time
class Engine:
    def __init__(self): self.me = self
    def __del__(self): tms.empty_cache()
live = [torch.empty(256, device="cuda") for _ in range(50_000)]
for _ in range(300):
    with saver.disable():
        x = full(1, 1)
        Engine()
    del x
gc.disable()
def leave():
    begin = time.perf_counter()
    with saver.disable(): pass
    return time.perf_counter() - begin
assert min(leave() for _ in range(20)) < 0.005  # a snapshot takes 0.03 s and more
"""
    output(code, TMS_INIT_ENABLE="1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_by_pid_of_what_is_cached(kind: str, tmp_path: Path) -> None:
    saves(
        kind,
        os.environ["TESTS_PYTORCH"],
        tmp_path,
        LD_PRELOAD=":".join(LIBRARIES),
        PYTHONWARNINGS="ignore",
        **SIMULATOR,
    )
