"""An engine under `tms run` that answers while it is moved to another GPU and back.

TESTS_MOVES (10) is how often it moves, there and back in turn. With -s the seconds are printed.
Two GPUs of one model are needed, with nothing else on them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keeping
import llama
import pytest
from device import torch_on_gpu, used
from test_sets import command

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus
if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

MOVES = int(os.environ.get("TESTS_MOVES", "10"))
MOST_LEFT = 8  # MiB, of the figures of both moments
CACHE = 20  # GiB


@pytest.mark.parametrize("name", keeping.installed_engines())
def test_it_answers_on(name: str, tmp_path: Path) -> None:
    gpus = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in (0, 1)]
    empty = used()
    folder = tmp_path / "model"
    folder.symlink_to(llama.folder(with_weights=True))
    engine = keeping.start(name, folder, "--backup", "sparse", cache=CACHE)
    over = threading.Event()

    def asks() -> list[tuple[object, float]]:
        answers = []
        while not over.is_set():
            answers.append(engine.asks())
        return answers

    took = []
    with ThreadPoolExecutor() as pool:
        try:
            expected = engine.asks()[0]
            [pid] = [p["pid"] for p in json.loads(command("ps", "--json")) if p["stats"]["devices"]]
            asking = pool.submit(asks)
            for here, there in ([gpus, gpus[::-1]] * MOVES)[:MOVES]:
                time.sleep(random.random())
                begin = time.perf_counter()
                command("move", str(pid), "--to", there)
                took.append(time.perf_counter() - begin)
                now = used()
                assert now[here] <= empty[here] + MOST_LEFT
                assert now[there] > empty[there] + (CACHE << 10)
            over.set()
            answers = asking.result(timeout=60)
        finally:
            over.set()
            engine.kill()
    assert len(answers) > MOVES // 2
    assert all(tokens == expected for tokens, _ in answers)
    longest = max(seconds for _, seconds in answers)
    print(f"\n{name}, {len(took)} moves: ", end="")
    print(f"median {statistics.median(took):.2f} s, longest {max(took):.2f} s; ", end="")
    print(f"{len(answers)} answers, the longest took {longest:.2f} s")
