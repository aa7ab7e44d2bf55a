"""Engines that keep their weights in a set: started, killed, and started again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable

import llama
import pytest
from device import free_memory
from following import Follower
from plugin import installed
from test_sets import command, keeper, until_free

HERE = Path(__file__).resolve().parent
PYMODULE = HERE.parent.parent
TMS = PYMODULE.parent / "build" / "bin" / "tms"
GIB = 1 << 30
AT_LENGTH = pytest.mark.skipif(
    os.environ.get("TESTS_SETS") != "all", reason="TESTS_SETS=all runs it"
)


class Engine(Follower):
    """Up when it has said its first tokens. `driver` is started with `arguments`, behind `run`.

    Attributes:
        first: the tokens.
        seconds: from the process's start to these.
        loading: seconds of the model's load alone.
    """

    def __init__(
        self, driver: str, *arguments: object, run: Sequence[str | Path] = (), **variables: str
    ) -> None:
        begun = time.perf_counter()
        self._turn = threading.Lock()  # it answers one request after another
        inherited = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        super().__init__(
            [*run, sys.executable, HERE / driver, *map(str, arguments)],
            env={**inherited, "TMS_COMMAND": str(TMS), **variables},
            start_new_session=True,
        )
        said = json.loads(self.answer())
        self.first, self.loading = said["first"], said["loading"]
        self.seconds = time.perf_counter() - begun

    def says(self, words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ask(words))
        return found

    def asks(self) -> tuple[Any, float]:
        """What it answers, and after how many seconds."""
        begin = time.perf_counter()
        with self._turn:
            said = self.says("ask")
        assert "tokens" in said, said
        return said["tokens"], time.perf_counter() - begin

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(
    name: str,
    folder: Path,
    *options: str,
    cache: float,
    kept: bool = False,
    prefixes: bool = False,
) -> Engine:
    """`tms run` starts it, with `cache` GiB of cache, and if `kept` with its weights in a set.

    With `prefixes` it keeps prefixes in the cache for later requests.
    """
    arguments: list[object] = [folder, "--cache-gib", cache]
    if prefixes:
        arguments.append("--prefixes")
    variables = {"PYTHONPATH": f"{PYMODULE}:{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    if name == "vllm":
        arguments.append("tms" if kept else "auto")
    elif kept:
        variables["TMS_SGLANG_KEPT"] = "1"
    run = (str(TMS), "run", *options, "--")
    return Engine(f"{name}_kept_driver.py", *arguments, run=run, **variables)


def installed_engines() -> list[str]:
    """The names of those that can be imported; skips the calling module's tests without any."""
    found = [name for name in ("sglang", "vllm") if importlib.util.find_spec(name)]
    if not found:
        pytest.skip("neither sglang nor vLLM is installed", allow_module_level=True)
    return found


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


@contextlib.contextmanager
def without_weights(model: Path) -> Iterator[None]:
    """In the body the checkpoint has zeros for weights, and its file looks as before."""
    file = model.resolve() / "model.safetensors"
    aside = model.resolve().with_suffix(".aside")
    state = file.stat()
    file.rename(aside)
    with aside.open("rb") as whole, file.open("wb") as header:
        size = whole.read(8)
        header.write(size + whole.read(int.from_bytes(size, "little")))
        header.truncate(state.st_size)
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    try:
        yield
    finally:
        aside.replace(file)


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


def compare(starts: dict[str, Callable[[], Engine]]) -> dict[str, Engine]:
    """The engines, which say equal tokens; the last one still runs."""
    engines: dict[str, Engine] = {}
    expected: list[Any] = []
    for name, start in starts.items():
        engine = engines[name] = start()
        expected.append([engine.first, engine.says("tokens")])
        assert expected[-1] == expected[0], name
    print(f"\n{llama.WEIGHTS} GiB of weights, seconds of the model's load, and to first tokens:")
    for name, engine in engines.items():
        print(f"{name:24}{engine.loading:8.2f}{engine.seconds:8.2f} seconds")
    return engines
