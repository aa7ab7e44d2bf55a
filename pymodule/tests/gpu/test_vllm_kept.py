"""vLLM's load format "tms": an engine is killed, and the next one attaches its weights.

With -s the seconds from the start of each process to its first tokens are printed, beside those of
a start that reads the checkpoint from the page cache. It takes about five minutes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama
import pytest
from device import free_memory, torch_on_gpu
from following import Follower
from plugin import installed
from test_kept import command, keeper, until_free

torch = torch_on_gpu()
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

HERE = Path(__file__).resolve().parent
PYMODULE = HERE.parent.parent
TMS = PYMODULE.parent / "build" / "bin" / "tms"
GIB = 1 << 30
COPY = ["--extra", '{"copy": true}']


class Engine(Follower):
    """Started, and up when it has said its first tokens. It leaves nothing when it is killed."""

    def __init__(self, place: Path, load_format: str, *more: str, preloaded: bool = False) -> None:
        paths = [str(place), str(PYMODULE), str(HERE), os.environ.get("PYTHONPATH", "")]
        inherited = {k: v for k, v in os.environ.items() if preloaded or k != "LD_PRELOAD"}
        begun = time.perf_counter()
        driver = HERE / "vllm_kept_driver.py"
        super().__init__(
            [sys.executable, driver, place / "model", load_format, *more],
            env={**inherited, "PYTHONPATH": ":".join(paths), "TMS_COMMAND": str(TMS)},
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


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the checkpoint is. No set is left afterwards."""
    folder: Path = tmp_path_factory.mktemp("kept")
    installed(folder)
    (folder / "model").symlink_to(llama.folder(with_weights=True))
    before = free_memory()
    yield folder
    for one in json.loads(command("kept", "--json")):
        command("kept", "drop", one["name"])
    until_free(before)
    os.kill(keeper(), signal.SIGKILL)


@pytest.fixture
def engines(place: Path) -> Iterator[Any]:
    """Starts engines one after the other: each kills the one before it."""
    empty = [free_memory()]
    running: list[Engine] = []

    def start(*arguments: str, **named: bool) -> Engine:
        for engine in running:
            engine.kill()
            until_free(empty[0] - 3 * GIB)  # one set stays
        running[:] = [Engine(place, *arguments, **named)]
        return running[0]

    yield start
    for engine in running:
        engine.kill()
        until_free(empty[0] - 3 * GIB)


def test_a_killed_engine_is_followed_by_another(engines: Any) -> None:
    plain = engines("safetensors")
    expected, told = plain.first, plain.says("tokens")
    seconds = {}
    for name, load_format in {
        "reads, publishes": "tms",
        "attaches": "tms",
        "attaches again": "tms",
        "reads (page cache warm)": "safetensors",
    }.items():
        engine = engines(load_format)
        assert engine.first == expected, name
        assert engine.says("tokens") == told, name
        seconds[name] = engine.seconds
    assert len(json.loads(command("kept", "--json"))) == 1
    print(f"\n{llama.WEIGHTS} GiB of weights, seconds from the process's start to first tokens:")
    for name, took in seconds.items():
        print(f"{name:24}{took:8.2f}")
    assert seconds["attaches"] < seconds["reads (page cache warm)"]


@pytest.mark.parametrize("preloaded", [False, True])
def test_sleep(engines: Any, preloaded: bool) -> None:
    """Both levels give the cache back and keep weights, in the first engine and in a later one."""
    told = []
    for _ in range(2):
        engine = engines("tms", "--sleep", preloaded=preloaded)
        told.append(engine.says("tokens"))
        for level in (1, 2, 1):
            assert engine.says(f"sleep {level}")["freed"] > 10 * GIB
            assert engine.says("wake") == {}
            told.append(engine.says("tokens"))
    assert all(one == told[0] for one in told)


def test_writing_is_refused_or_has_a_copy(engines: Any) -> None:
    engine = engines("tms")
    told = engine.says("tokens")
    assert "cannot be written" in engine.says("reload")["error"]
    assert engine.says("tokens") == told
    engine = engines("tms", *COPY)
    assert engine.says("tokens") == told
    assert engine.says("reload") == {}
    assert engine.says("tokens") == told
