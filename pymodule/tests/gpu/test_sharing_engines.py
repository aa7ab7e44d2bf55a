"""Three engines on one GPU, each with most of its memory, asked in a random order.

They know nothing of one another: `tms run --share` alone makes room, and the plugin lets an engine
without requests give way without its cache. An answer from a prefix that is cached may differ from
one that is computed again, and both are right; one from a cache that was lost is neither.

First one client asks, which shows what a switch takes and of what parts; then several ask at once.
With -s the seconds are printed. As for the other tests here, libtms.so is in LD_PRELOAD, or
build/sim is there.
TESTS_REQUESTS (60) is how many the clients ask together, TESTS_CLIENTS (8) how many they are,
TESTS_CACHE_GIB the size of each cache. 1,000 requests take some six minutes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keeping
import llama
import pytest
from device import MiB, torch_on_gpu
from plugin import installed
from test_sets import command

torch = torch_on_gpu()

TOTAL = torch.cuda.mem_get_info()[1] >> 30
CACHE = int(os.environ.get("TESTS_CACHE_GIB", TOTAL * 55 // 100))
REQUESTS = int(os.environ.get("TESTS_REQUESTS", "60"))
CLIENTS = int(os.environ.get("TESTS_CLIENTS", "8"))
ONE_BY_ONE = 40  # requests of the first part


def parts(traces: list[Path]) -> dict[str, list[float]]:
    """Milliseconds of each wait for memory, by what it was for, as the recordings tell."""
    recorded = command("report", *map(str, traces), "--format", "perfetto", "-o", "-")
    spans = [event for event in json.loads(recorded)["traceEvents"] if "dur" in event]
    found: dict[str, list[float]] = {}

    def add(name: str, microseconds: float) -> None:
        found.setdefault(name, []).append(microseconds / 1000)

    def end(span: dict[str, Any]) -> float:
        return float(span["ts"] + span["dur"])

    for wait in (span for span in spans if span["name"] == "wait"):
        inside = [s for s in spans if wait["ts"] <= s["ts"] and end(s) <= end(wait) and s != wait]
        outs = [s for s in inside if s["name"].startswith("pause") and s["pid"] != wait["pid"]]
        backs = [s for s in inside if s["name"].startswith("resume") and s["pid"] == wait["pid"]]
        if outs and backs:
            add("until another pauses", min(s["ts"] for s in outs) - wait["ts"])
            add("its pause", sum(s["dur"] for s in outs))
            add("of that for its device", sum(s["args"]["waited"] for s in outs) * 1e6)
            add("until the resume", min(s["ts"] for s in backs) - max(map(end, outs)))
            add("the resume", sum(s["dur"] for s in backs))
            add("until the command ends", end(wait) - max(map(end, backs)))
            add("all", wait["dur"])
    return found


def asks(engine: keeping.Engine, right: list[Any]) -> float:
    """The seconds until it has answered; `right`: its answers to each prompt."""
    tokens, took = engine.asks()
    assert all(each in answers for each, answers in zip(tokens, right)), tokens
    return took


def asked_together(engines: list[keeping.Engine], right: list[Any]) -> list[float]:
    """The seconds of each request of all clients."""

    def client(seed: int) -> list[float]:
        order, waits = random.Random(seed), []
        for _ in range(seed, REQUESTS, CLIENTS):
            waits.append(asks(order.choice(engines), right))
        return waits

    with ThreadPoolExecutor(CLIENTS) as pool:
        return [took for each in pool.map(client, range(CLIENTS)) for took in each]


def swap_seconds() -> list[float]:
    """The last pause and resume of each engine, together."""
    took = []
    for process in json.loads(command("ps", "--json")):
        for device in process["stats"]["devices"]:
            tags = device["tags"]
            took.append(sum(t["last_pause_seconds"] + t["last_resume_seconds"] for t in tags))
    return took


def host_bytes() -> int:
    """What the contents of all engines take in host memory."""
    found = json.loads(command("ps", "--json"))
    devices = [device for process in found for device in process["stats"]["devices"]]
    return sum(tag["host_bytes"] for device in devices for tag in device["tags"])


def others_give_way() -> None:
    """To what ends at once: sglang fits its cache into what is free when it starts."""
    code = f"import torch; torch.empty({TOTAL * 4 // 5} << 30, dtype=torch.uint8, device='cuda')"
    command("run", "--share", "--", sys.executable, "-c", code)


def smallest() -> int:
    """The bytes of the engine that has least memory, paused or not."""
    listed = [process["stats"]["devices"] for process in json.loads(command("ps", "--json"))]
    sizes = [sum(tag["live_bytes"] for each in has for tag in each["tags"]) for has in listed]
    return int(min(size for size in sizes if size))  # an engine's other processes have none


@pytest.mark.parametrize("name", keeping.installed_engines())
def test_nobody_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    folder = tmp_path / "model"
    folder.symlink_to(llama.folder(with_weights=True))
    engines: list[keeping.Engine] = []
    starts = []
    try:
        for i in range(3):
            if engines:
                others_give_way()
            begin = time.perf_counter()
            trace = f"{tmp_path}/{i}-%p.trace"
            options = ("--share", "--backup", "sparse", "--trace", trace)
            engines.append(keeping.start(name, folder, *options, cache=CACHE, prefixes=True))
            starts.append(time.perf_counter() - begin)
        print(f"\n3 {name} with caches of {CACHE} GiB on {TOTAL} GiB")
        print("started in " + ", ".join(f"{took:.1f}" for took in starts) + " s")
        assert smallest() > CACHE << 30
        right = list(zip(engines[0].asks()[0], engines[0].asks()[0]))  # it was paused before
        asks(engines[2], right)
        alone = statistics.median(asks(engines[2], right) for _ in range(5))
        last = engines[2]
        same, switches = [], []
        order = random.Random(1)
        for _ in range(ONE_BY_ONE):
            chosen = order.choice(engines)
            took = asks(chosen, right)
            (same if chosen == last else switches).append(took)
            last = chosen
        print(f"{ONE_BY_ONE} requests of one client; alone {alone:.3f} s, ", end="")
        print(f"the same again at most {max(same):.3f}")
        print(f"switch: median {statistics.median(switches):.3f} s, longest {max(switches):.3f}")
        print("the last swaps themselves: " + ", ".join(f"{took:.3f}" for took in swap_seconds()))
        print(f"contents of those that are paused: {host_bytes() / MiB / 1024:.1f} GiB")
        for name, spent in parts(sorted(tmp_path.glob("*.trace"))).items():
            print(f"  {name:24} {statistics.median(spent):6.1f} ms, longest {max(spent):6.1f}")
        assert len(switches) > ONE_BY_ONE // 3

        begin = time.perf_counter()
        waits = sorted(asked_together(engines, right))
        took = time.perf_counter() - begin
        free = torch.cuda.mem_get_info()[0] / MiB / 1024
        assert len(waits) == REQUESTS
        print(f"{REQUESTS} requests of {CLIENTS} clients in {took:.1f} s, none refused: ", end="")
        print(f"median {statistics.median(waits):.2f} s, longest {waits[-1]:.2f}; ", end="")
        print(f"{free:.1f} GiB are free", flush=True)
        last.kill()  # the others serve on
        for engine in engines:
            if engine is not last:
                asks(engine, right)
    finally:
        for engine in engines:
            engine.kill()
