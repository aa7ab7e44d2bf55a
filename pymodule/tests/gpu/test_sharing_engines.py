"""Three vLLM engines on one GPU, each with most of its memory, asked in a random order.

They know nothing of one another: `tms run --share` alone makes room. With -s the seconds of the
answers are printed. As for the other tests here, libtms.so is in LD_PRELOAD, or build/sim is there.
TMS_TEST_REQUESTS (60) is how many; TMS_TEST_CACHE_GIB the size of each cache.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import statistics
import time
from pathlib import Path

import keeping
import llama
import pytest
from device import MiB, torch_on_gpu
from test_sets import command

torch = torch_on_gpu()
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

TOTAL = torch.cuda.mem_get_info()[1] >> 30
CACHE = int(os.environ.get("TMS_TEST_CACHE_GIB", TOTAL * 55 // 100))
REQUESTS = int(os.environ.get("TMS_TEST_REQUESTS", "60"))


def swap_seconds() -> list[float]:
    """The last pause and resume of each engine, together."""
    took = []
    for process in json.loads(command("ps", "--json")):
        for device in process["stats"]["devices"]:
            tags = device["tags"]
            took.append(sum(t["last_pause_seconds"] + t["last_resume_seconds"] for t in tags))
    return took


def test_nobody_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.symlink_to(llama.folder(with_weights=True))
    options = ("--share", "--backup", "sparse")
    engines: list[keeping.Engine] = []
    starts = []
    try:
        for _ in range(3):
            begin = time.perf_counter()
            engines.append(keeping.start("vllm", folder, *options, cache=CACHE))
            starts.append(time.perf_counter() - begin)
        expected, _ = engines[2].asks()
        alone = statistics.median(engines[2].asks()[1] for _ in range(5))
        random.seed(1)
        last = 2
        same, switches = [], []
        for _ in range(REQUESTS):
            chosen = random.randrange(3)
            tokens, took = engines[chosen].asks()
            assert tokens == expected
            (same if chosen == last else switches).append(took)
            last = chosen
        free = torch.cuda.mem_get_info()[0] / MiB / 1024
        print(f"\n3 engines with caches of {CACHE} GiB on {TOTAL} GiB; {free:.1f} GiB are free")
        print("started in " + ", ".join(f"{took:.1f}" for took in starts) + " s")
        print(f"{REQUESTS} requests; alone {alone:.3f} s, the same again at most {max(same):.3f}")
        print(f"switch: median {statistics.median(switches):.3f} s, longest {max(switches):.3f}")
        print("the last swaps themselves: " + ", ".join(f"{took:.3f}" for took in swap_seconds()))
        assert len(switches) > REQUESTS // 3
        engines[last].kill()  # the others serve on
        for engine in engines:
            if engine is not engines[last]:
                assert engine.asks()[0] == expected
    finally:
        for engine in engines:
            engine.kill()
