"""Engines on one set of weights: they share it, and a standby takes over after kill -9.

With -s the MiB of the engines are printed, and the seconds from the kill to the first answer beside
those of new starts. TESTS_ENGINES (3) is how many there are. Nothing else may use the GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import keeping
import llama
import pytest
from device import torch_on_gpu, used
from keeping import TMS, Engine
from test_sets import command

torch = torch_on_gpu()

ENGINES = int(os.environ.get("TESTS_ENGINES", "3"))
CACHE = 4  # GiB
WEIGHTS = int(llama.WEIGHTS * 1024)  # MiB, as what follows
MOST_LEFT = 8


@pytest.fixture
def place(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("standby")
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")  # what makes libtms look installed
    yield from keeping.checkpoint(folder)


def in_use() -> int:
    return used()[f"GPU-{torch.cuda.get_device_properties(0).uuid}"]


def listed() -> set[int]:
    """The processes that have device memory: each engine has one."""
    return {p["pid"] for p in json.loads(command("ps", "--json")) if p["stats"]["devices"]}


def until_published(maker: Future[Engine]) -> None:
    while not any(one["sealed"] for one in json.loads(command("kept", "--json"))):
        assert not maker.done(), "it has published nothing: its words are above"
        time.sleep(0.2)


@pytest.mark.parametrize("name", keeping.installed_engines())
def test_a_standby_takes_over(name: str, place: Path) -> None:
    with contextlib.ExitStack() as ends:

        def start(kept: bool = True) -> Engine:
            options = ("--backup", "sparse")
            engine = keeping.start(name, place / "model", *options, cache=CACHE, kept=kept)
            ends.callback(engine.kill)
            return engine

        empty = in_use()
        with ThreadPoolExecutor(ENGINES) as starting:
            first = starting.submit(start)
            until_published(first)
            rest = [starting.submit(start) for _ in range(ENGINES - 2)]
        engines = [made.result() for made in (first, *rest)]
        expected = engines[0].asks()[0]
        assert all(engine.asks()[0] == expected for engine in engines)
        before, others = in_use(), listed()

        standby = start()
        assert standby.asks()[0] == expected
        one, every = in_use() - before, in_use() - empty
        own = (every - WEIGHTS) // ENGINES - (CACHE << 10)
        print(f"\n{ENGINES} {name} with caches of {CACHE} GiB on {WEIGHTS} MiB of weights take")
        print(f"{every} MiB, the last one of them {one} MiB: the weights once, and for each its")
        print(f"cache and {own} MiB")
        assert one < (CACHE << 10) + WEIGHTS, "it has weights of its own"
        assert every < ENGINES * one + WEIGHTS * 3 // 2, "others have weights of their own"

        (pid,) = listed() - others
        begin = time.perf_counter()
        command("pause", str(pid), "--everything")
        paused = time.perf_counter() - begin
        left = in_use() - before
        print(f"paused with everything in {paused:.2f} s; {left} MiB are left")
        assert left <= MOST_LEFT

        serving = engines[0]
        line = 'tail --pid=$0 -s 0.1 -f /dev/null; "$1" resume $2 --wait 60'  # as in docs/kept.md
        words = ["bash", "-c", line, str(serving.process.pid), str(TMS), str(pid)]
        with subprocess.Popen(words) as watcher:
            begin = time.perf_counter()
            serving.kill()
            tokens, _ = standby.asks()
            took = time.perf_counter() - begin
        assert watcher.returncode == 0
        assert tokens == expected
        reader = start(kept=False)
        assert reader.asks()[0] == expected
        print("seconds to the first answer after kill -9:")
        for name, seconds in {
            "the standby": took,
            "a new start that attaches": standby.seconds,
            "a new start that reads": reader.seconds,
        }.items():
            print(f"{name:28}{seconds:8.2f}")
