"""Programs that publish sets of tensors and attach them, and the keeper that they start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from following import OBEY, Follower
from simulator import BUILD, HANGS, PYMODULE, environment

TESTS = Path(__file__).resolve().parent
MiB = 1 << 20
OVERWRITE = "{0}.as_strided((1,), (1,)).copy_({0}.as_strided((1,), (1,)))"

PROGRAM = (
    """
import ctypes, json, os, sys
import cuda, torch, tms
from tms._library import load
def raw(function, *arguments):
    code = getattr(load().c, function)(*arguments)
    if code:
        raise tms.TmsError(load().last_error, code=code)
def module(value=None, unlike=0):
    layer, top = torch.nn.Module(), torch.nn.Module()
    weight = torch.nn.Parameter(torch.filled(value or 0, 64 + unlike, 1024))
    layer._parameters["weight"] = weight
    layer._buffers["scale"] = torch.filled((value or 0) + 1, 3, dtype=torch.bfloat16)
    top._parameters["tied"] = weight
    top._modules["layer"] = layer
    return top
def attached(name="set", module=None, copy=False):
    global tensors
    with tms.kept(name) as k:
        assert k.complete
        tensors = k.attach(module, copy=copy)
def published(name, value, size=MiB):
    with tms.kept(name) as k:
        k.publish({"a": torch.filled(value, size, dtype=torch.uint8)})
def value(of="a"):
    return tensors[of].bytes()[0]
""".replace("MiB", str(MiB))
    + OBEY
)


REACH = f"{BUILD / 'lib' / 'libtms.so'}:{BUILD / 'lib' / 'libtms_reach.so'}"
"""What `tms run` preloads."""


class Program(Follower):
    """A program on a simulated device that it shares with the others."""

    def __init__(self, place: Path, name: str, *wrapper: str, **variables: str) -> None:
        super().__init__(
            [*wrapper, sys.executable, "-c", PROGRAM],
            env={
                **environment(),
                "PYTHONPATH": f"{PYMODULE}:{TESTS}:{TESTS / 'kept'}",
                "XDG_RUNTIME_DIR": str(place),
                "TMPDIR": str(place),
                "CUDASIM_SHARED": name,
                "TMS_DEBUG": "invariants",
                **variables,
            },
        )

    def run(self, code: str) -> Any:
        """The value of an expression, or the text of its error."""
        return json.loads(self.ask(json.dumps(code)))

    def does(self, code: str) -> None:
        assert self.run(code) is None

    def free(self) -> int:
        return int(self.run("cuda.free_memory()"))


class House:
    """Programs, and the keeper that they have started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._name = f"kept-{os.getpid()}-{place.name}"[-60:]
        self._programs: list[Follower] = []

    def program(self, *wrapper: str, **variables: str) -> Program:
        made = Program(self.place, self._name, *wrapper, **variables)
        self._programs.append(made)
        return made

    def follower(self, *command: str | Path) -> Follower:
        """A program of any kind, on the same devices."""
        self._programs.append(Follower(command, env=self.environment()))
        return self._programs[-1]

    def keeper(self) -> int:
        """Its process, or 0 for none."""
        with socket.socket(socket.AF_UNIX) as asked:
            try:
                asked.connect(str(self.place / "tms" / "keeper.sock"))
            except OSError:
                return 0
            peer = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", peer)[0])

    def kill_keeper(self) -> None:
        pid = self.keeper()
        assert pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.keeper() == 0)

    def environment(self) -> dict[str, str]:
        return {
            **environment(),
            "LD_PRELOAD": "",
            "XDG_RUNTIME_DIR": str(self.place),
            "TMPDIR": str(self.place),
            "CUDASIM_SHARED": self._name,
        }

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """The command tms, on the devices of the programs."""
        return subprocess.Popen(
            [BUILD / "bin" / "tms", *arguments],
            env={**self.environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as started:
            out, err = started.communicate(timeout=HANGS)
            return subprocess.CompletedProcess(arguments, started.returncode, out, err)

    def overwrite(self, chunk: int, offset: int, value: int) -> None:
        """Changes a byte of a set behind everybody's back."""
        ask = {"version": 1, "op": "lend", "share": self.sets()[0]["chunks"][chunk]["id"]}
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.place / "tms" / "keeper.sock"))
            asked.sendall(json.dumps(ask).encode() + b"\n")
            [descriptor] = socket.recv_fds(asked, 4096, 1)[1]
        assert os.pwrite(descriptor, bytes([value]), offset) == 1
        os.close(descriptor)

    def move(self, *arguments: str, **variables: str) -> str:
        done = self.command("kept", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sets(self) -> Any:
        result = self.command("kept", "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def end(self) -> None:
        for program in self._programs:
            program.kill()
        if pid := self.keeper():
            os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < HANGS
        time.sleep(0.01)


def stop(pid: int) -> None:
    """Stops a process: until one of its threads has taken the signal, the others go on."""
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        try:
            tasks = Path(f"/proc/{pid}/task").iterdir()
            return all((task / "stat").read_text().rpartition(") ")[2][0] == "T" for task in tasks)
        except FileNotFoundError:  # a thread has just ended
            return False

    until(stands)


@pytest.fixture
def house() -> Iterator[House]:
    place = Path(tempfile.mkdtemp(prefix="tms-test-", dir="/tmp"))  # short, for paths of sockets
    made = House(place)
    yield made
    made.end()
    shutil.rmtree(place)


STEPS = [
    "raw('tms_kept_create', ctypes.byref(handle), b'set', -1)",
    "raw('tms_kept_add', handle, 3 << 20, ctypes.byref(address))",
    "raw('tms_kept_add', handle, 1, ctypes.byref(address))",
    "cuda.write(address.value, b'contents')",
]


def large(house: House) -> Program:
    """Publishes a set of three chunks in a program that has ended, and returns another."""
    maker = house.program()
    maker.does("from tms import _kept; _kept._CHUNK = 1")
    maker.does(
        "with tms.kept('set') as k: "
        "k.publish({str(i): torch.filled(i + 5, 3 << 20, dtype=torch.uint8) for i in range(3)})"
    )
    maker.kill()
    return house.program()


INTACT = "[set(tensors[str(i)].bytes()) == {i + 5} for i in range(3)] == [True] * 3"
