"""Three vLLM engines on one GPU, each with most of its memory, asked in a random order.

They know nothing of one another: `tms run --share` alone makes room, and the plugin lets an engine
without requests give way without its cache. First one client asks, which shows what a switch takes
and of what parts; then several ask at once. With -s the seconds are printed. As for the other tests
here, libtms.so is in LD_PRELOAD, or build/sim is there.
TMS_TEST_REQUESTS (60) is how many the clients ask together, TMS_TEST_CLIENTS (8) how many they are,
TMS_TEST_CACHE_GIB the size of each cache. 1,000 requests take some six minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
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
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

TOTAL = torch.cuda.mem_get_info()[1] >> 30
CACHE = int(os.environ.get("TMS_TEST_CACHE_GIB", TOTAL * 55 // 100))
REQUESTS = int(os.environ.get("TMS_TEST_REQUESTS", "60"))
CLIENTS = int(os.environ.get("TMS_TEST_CLIENTS", "8"))
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


def asked_together(engines: list[keeping.Engine], expected: Any) -> list[float]:
    """The seconds of each request of all clients."""

    def client(seed: int) -> list[float]:
        order, waits = random.Random(seed), []
        for _ in range(seed, REQUESTS, CLIENTS):
            tokens, took = order.choice(engines).asks()
            assert tokens == expected
            waits.append(took)
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


def test_nobody_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    folder = tmp_path / "model"
    folder.symlink_to(llama.folder(with_weights=True))
    engines: list[keeping.Engine] = []
    starts = []
    try:
        for i in range(3):
            begin = time.perf_counter()
            trace = f"{tmp_path}/{i}-%p.trace"
            options = ("--share", "--backup", "sparse", "--trace", trace)
            engines.append(keeping.start("vllm", folder, *options, cache=CACHE))
            starts.append(time.perf_counter() - begin)
        print(f"\n3 engines with caches of {CACHE} GiB on {TOTAL} GiB")
        print("started in " + ", ".join(f"{took:.1f}" for took in starts) + " s")
        expected, _ = engines[2].asks()
        alone = statistics.median(engines[2].asks()[1] for _ in range(5))
        last = engines[2]
        same, switches = [], []
        order = random.Random(1)
        for _ in range(ONE_BY_ONE):
            chosen = order.choice(engines)
            tokens, took = chosen.asks()
            assert tokens == expected
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
        waits = sorted(asked_together(engines, expected))
        took = time.perf_counter() - begin
        free = torch.cuda.mem_get_info()[0] / MiB / 1024
        assert len(waits) == REQUESTS
        print(f"{REQUESTS} requests of {CLIENTS} clients in {took:.1f} s, none refused: ", end="")
        print(f"median {statistics.median(waits):.2f} s, longest {waits[-1]:.2f}; ", end="")
        print(f"{free:.1f} GiB are free", flush=True)
        last.kill()  # the others serve on
        for engine in engines:
            if engine is not last:
                assert engine.asks()[0] == expected
    finally:
        for engine in engines:
            engine.kill()
