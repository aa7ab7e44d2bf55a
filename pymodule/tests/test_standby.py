"""The recipe of docs/kept.md, over the simulator: a standby takes over after kill -9."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import sys

import publishing
from following import Follower
from publishing import House
from simulator import BUILD, HANGS, PYMODULE

house = publishing.house
DOCS = PYMODULE.parent / "docs"
EXAMPLE = DOCS / "examples" / "standby.py"
TMS = BUILD / "bin" / "tms"


def free_port() -> str:
    """Below those that connections get: one might take it between the two engines."""
    while True:
        port = random.randrange(20000, 32768)
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            return str(port)


def watching(house: House, engine: int, standby: int) -> subprocess.Popen[bytes]:
    """The document's line that resumes the standby."""
    (line,) = re.findall(r"^    \((tail --pid=\$A .*)\) &$", (DOCS / "kept.md").read_text(), re.M)
    variables = {"A": str(engine), "B": str(standby), "PATH": f"{TMS.parent}:{os.environ['PATH']}"}
    return subprocess.Popen(["bash", "-c", line], env={**house.environment(), **variables})


def test_the_load_goes_on(house: House) -> None:
    """Of the first engine, which has published the weights, and of the one that follows it."""
    port, other = free_port(), house.program()

    def started() -> Follower:
        run = [TMS, "run", "--backup", "sparse", "--", sys.executable, EXAMPLE, "serve", port]
        engine = house.follower(*run)
        assert engine.answer() == "warm"
        return engine

    engine = started()
    for _ in range(2):
        load = house.follower(sys.executable, EXAMPLE, "load", port)
        assert load.answer() == f"process {engine.process.pid} answers"
        before = other.free()
        standby = started()
        assert other.free() < before
        paused = house.command("pause", str(standby.process.pid), "--everything")
        assert paused.returncode == 0, paused.stderr
        assert other.free() == before
        watcher = watching(house, engine.process.pid, standby.process.pid)
        engine.kill()
        assert load.answer() == f"process {standby.process.pid} answers"
        print("\n" + load.answer())
        assert watcher.wait(HANGS) == 0
        engine = standby
