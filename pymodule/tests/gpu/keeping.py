"""Engines that keep their weights in a set: started, killed, and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import llama
from device import free_memory
from following import Follower
from plugin import installed
from test_sets import command, keeper, until_free

HERE = Path(__file__).resolve().parent
PYMODULE = HERE.parent.parent
TMS = PYMODULE.parent / "build" / "bin" / "tms"
GIB = 1 << 30


class Engine(Follower):
    """Up when it has said its first tokens. `driver` is started with `arguments`."""

    def __init__(self, driver: str, *arguments: object, **variables: str) -> None:
        begun = time.perf_counter()
        inherited = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        super().__init__(
            [sys.executable, HERE / driver, *map(str, arguments)],
            env={**inherited, "TMS_COMMAND": str(TMS), **variables},
            start_new_session=True,
        )
        self.first = json.loads(self.answer())["first"]
        self.seconds = time.perf_counter() - begun

    def says(self, words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(words))
        return found

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def checkpoint(folder: Path) -> Iterator[Path]:
    """Makes `folder`/model, and what makes libtms look installed. No set is left afterwards."""
    installed(folder)
    (folder / "model").symlink_to(llama.folder(with_weights=True))
    before = free_memory()
    yield folder
    for one in json.loads(command("kept", "--json")):
        command("kept", "drop", one["name"])
    until_free(before)
    os.kill(keeper(), signal.SIGKILL)


def one_after_another(start: Callable[..., Engine]) -> Iterator[Callable[..., Engine]]:
    """`start`, which kills the engine before; that one leaves nothing but a set."""
    empty = free_memory()
    running: list[Engine] = []

    def kill() -> None:
        while running:
            running.pop().kill()
        until_free(empty - 3 * GIB)

    def started(*arguments: object, **variables: str) -> Engine:
        kill()
        running.append(start(*arguments, **variables))
        return running[0]

    yield started
    kill()


def compare(starts: dict[str, Callable[[], Engine]]) -> dict[str, float]:
    """Seconds from each process's start to its first tokens, which are equal."""
    seconds: dict[str, float] = {}
    expected: list[Any] = []
    for name, start in starts.items():
        engine = start()
        expected.append([engine.first, engine.says("tokens")])
        assert expected[-1] == expected[0], name
        seconds[name] = engine.seconds
    print(f"\n{llama.WEIGHTS} GiB of weights, seconds from the process's start to first tokens:")
    for name, took in seconds.items():
        print(f"{name:24}{took:8.2f}")
    return seconds
