"""A pause by pid does not save what PyTorch only caches: PyTorch gives it back first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from reaching import undisturbed
from simulator import BUILD, HANGS, PYMODULE

MiB = 1 << 20

PROGRAM = """
import ctypes, sys, types
import cuda, tms
cuda.set_device(int(sys.argv[2]))
cached, live = [cuda.malloc(32 << 20)], cuda.malloc(8 << 20)
cuda.write(live, b"contents")
torch = types.ModuleType("torch._C")
def empty():
    cuda.free_memory()  # needs a context, as a wait for an event does
    while cached:
        cuda.free(cached.pop())
torch._cuda_emptyCache = empty
sys.modules["torch._C"] = torch
before = sys.argv[1:] and exec(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
"""


def tms(*arguments: str) -> str:
    command = [str(BUILD / "bin" / "tms"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=undisturbed(), timeout=HANGS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Program:
    def __init__(self, more: str, device: int) -> None:
        run = [str(BUILD / "bin" / "tms"), "run", "--"]
        paths = f"{PYMODULE}:{PYMODULE / 'tests'}"
        self.process = subprocess.Popen(
            [*run, sys.executable, "-c", PROGRAM, more, str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**undisturbed(), "PYTHONPATH": paths, "CUDASIM_DEVICES": "2"},
        )
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def ask(self, code: str) -> str:
        assert self.process.stdin and self.process.stdout
        print(code, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def saved(self) -> int:
        """MiB of contents that a pause saves."""
        pid = str(self.process.pid)
        tms("pause", pid)
        bytes_ = self.ask("sum(t['host_bytes'] for d in tms.stats()['devices'] for t in d['tags'])")
        tms("resume", pid)
        return int(bytes_) // MiB


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    param = getattr(request, "param", "")
    made = Program(*param) if isinstance(param, tuple) else Program(param, 0)
    yield made
    made.process.kill()
    made.process.wait()


def test_the_cache_is_given_back(program: Program) -> None:
    assert program.saved() == 8
    assert program.ask("cuda.read(live, 8), cached") == "(b'contents', [])"


SLOW = """
import time
def empty():
    time.sleep(2)  # more than a pause waits for Python's lock
    emptied()
emptied, torch._cuda_emptyCache = torch._cuda_emptyCache, empty
"""


@pytest.mark.parametrize("program", [SLOW], indirect=True)
def test_a_cache_that_takes_long_is_given_back_first(program: Program) -> None:
    """A pause that went on would save what is about to be free."""
    assert program.saved() == 8


CONTEXTS = """
def contexts():
    active = (ctypes.c_int * 2)()
    for device in range(2):
        flags, state = ctypes.c_uint(), ctypes.byref(active, device * 4)
        cuda.check(cuda._driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), state))
    return list(active)
"""


@pytest.mark.parametrize("program", [(CONTEXTS, 1)], indirect=True)
def test_a_device_that_is_not_used_gets_no_context(program: Program) -> None:
    assert program.ask("contexts()") == "[0, 1]"
    assert program.saved() == 8
    assert program.ask("contexts()") == "[0, 1]"


@pytest.mark.parametrize(
    "program",
    [
        "def empty(): raise RuntimeError('no')\ntorch._cuda_emptyCache = empty",
        "del sys.modules['torch._C']",
        "del torch._cuda_emptyCache",
    ],
    indirect=True,
)
def test_where_it_cannot_be_the_pause_saves_it(program: Program) -> None:
    assert program.saved() == 40
    assert program.ask("cuda.read(live, 8), len(cached)") == "(b'contents', 1)"


CAPTURE = """
import os, threading, time
driver = ctypes.CDLL(None)
stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
cuda.check(driver.cuStreamCreate(ctypes.byref(stream), 1))
go, begun = threading.Event(), threading.Event()
def capture():
    go.wait()
    cuda.check(driver.cuStreamBeginCapture_v2(stream, 0))
    begun.set()
    cuda.check(driver.cuStreamEndCapture(stream, ctypes.byref(graph)))
capturing = threading.Thread(target=capture)
capturing.start()
def empty():
    go.set()
    waits = f"/proc/self/task/{capturing.native_id}/syscall"
    while not begun.is_set() and open(waits).read().split()[2:3] != ["0x80"]:
        time.sleep(0.005)  # until it waits at the gate: Python's locks are futexes of another kind
    if not begun.is_set():
        emptied()
emptied, torch._cuda_emptyCache = torch._cuda_emptyCache, empty
"""


@pytest.mark.parametrize("program", [CAPTURE], indirect=True)
def test_no_capture_begins_while_the_cache_is_emptied(program: Program) -> None:
    assert program.saved() == 8
    assert program.ask("capturing.join() or begun.is_set()") == "True"


HOLD = "hold = lambda: ctypes.PyDLL(None).system(b'echo holds; read line')"
"""With Python's lock from before it says so until it has read a line."""


@pytest.mark.parametrize("program", [HOLD], indirect=True)
def test_a_thread_that_keeps_pythons_lock_does_not_hold_the_pause_up(program: Program) -> None:
    """And the cache is not emptied later, when nothing expects it."""
    assert program.process.stdin and program.process.stdout
    print("hold()", file=program.process.stdin, flush=True)
    assert program.process.stdout.readline() == "holds\n"
    tms("pause", str(program.process.pid))
    tms("resume", str(program.process.pid))
    print(file=program.process.stdin, flush=True)
    assert program.process.stdout.readline() == "0\n"
    assert program.ask("cuda.read(live, 8), len(cached)") == "(b'contents', 1)"
