"""Programs share a GPU; one, or a `tms share`, is killed at any moment, and the others go on.

TESTS_KILLS (20) is how often; 500 take some five minutes. As for the other tests here,
libtms.so is in LD_PRELOAD.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from device import MiB, built, free_memory, loaded_driver, torch_on_gpu, unpreloaded
from keeping import TMS
from test_sets import until_free

torch = torch_on_gpu()

KILLS = int(os.environ.get("TESTS_KILLS", "20"))
AT_ONCE = 4
CONTEXT = 600  # MiB, at most
MEMORY = 3000  # MiB for what they allocate, beside their contexts and the reserve
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "with_turns"
    built("cc", "-std=gnu11", "-O2", "-o", path, PROGRAMS / "with_turns.c", loaded_driver())
    return path


@contextlib.contextmanager
def little_room() -> Iterator[int]:
    """Leaves what `AT_ONCE` programs need, and returns the bytes that are free then."""
    free = free_memory()
    left = (MEMORY + AT_ONCE * CONTEXT + 1024) * MiB
    held = torch.empty(max(0, free - left), dtype=torch.uint8, device="cuda")
    try:
        yield torch.cuda.mem_get_info()[0]
    finally:
        del held


class Shared:
    """`AT_ONCE` programs, each followed by another, until `over`."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.lock = threading.Lock()
        self.running: set[int] = set()
        self.killed: set[int] = set()
        self.failures: list[str] = []
        self.ended = 0
        self.over = threading.Event()

    def run(self, seed: int) -> None:
        order = random.Random(seed)
        while not self.over.is_set() and not self.failures:
            size = MEMORY * order.randrange(40, 65) // 100
            work = [str(size), str(order.randrange(300, 1500)), str(order.choice((0, 2)))]
            command = [TMS, "run", "--share", "--at-least", "50ms", "--", self.program, *work]
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=unpreloaded(TMS_COMMAND=str(TMS)),
            )
            with self.lock:
                self.running.add(process.pid)
            said, _ = process.communicate()
            with self.lock:
                self.running.discard(process.pid)
                if process.pid in self.killed:
                    continue
                self.ended += 1
                if process.returncode != 0 or "digest" not in said:
                    self.failures.append(f"{work}: {process.returncode}: {said}")

    def kill(self, order: random.Random) -> str:
        """Kills a program, or a command that one has started, and says which; "": neither."""
        with self.lock:
            kind = order.choice(("program", "command"))
            victims = list(self.running) if kind == "program" else children(self.running)
            if not victims:
                return ""
            pid = order.choice(victims)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return ""
            self.killed.add(pid)
            return kind


def children(parents: set[int]) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[1]) in parents:
                found.append(int(entry.parent.name))
    return found


def test_whoever_is_killed(program: Path) -> None:
    order = random.Random(KILLS)
    kills: Counter[str] = Counter()
    with little_room() as free, ThreadPoolExecutor(AT_ONCE) as threads:
        shared = Shared(program)
        began = time.monotonic()
        runs = [threads.submit(shared.run, seed) for seed in range(AT_ONCE)]
        while kills.total() < KILLS and not shared.failures:
            time.sleep(order.uniform(0, 0.6))
            killed = ""
            while not killed and not shared.failures:  # few have a command at any moment
                killed = shared.kill(order)
                time.sleep(0.01)
            kills[killed] += 1
        shared.over.set()
        for run in runs:
            run.result(timeout=120)  # no engine stays paused
        took = time.monotonic() - began
        assert not shared.failures, "\n".join(shared.failures)
        until_free(free)
    print(f"\nin {took:.0f} s killed: {dict(kills)}; {shared.ended} programs ended as they should")
    assert shared.ended > 0
