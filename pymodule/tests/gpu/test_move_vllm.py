"""A real vLLM engine, moved to another GPU and back in the middle of its answers.

TMS_TEST_MOVES (5) is how often it goes there and back. With -s the seconds are printed. Two GPUs of
one model are needed, with nothing else on them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
import time
from pathlib import Path

import llama
import pytest
from device import torch_on_gpu
from test_sets import command
from test_sharing_engines import Engine

torch = torch_on_gpu()
if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

MOVES = int(os.environ.get("TMS_TEST_MOVES", "5"))


def test_it_answers_on(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.symlink_to(llama.folder(with_weights=True))
    engine = Engine(folder, "run", "--backup", "sparse", cache=20)
    answers, took, over = [], [], threading.Event()

    def asks() -> None:
        while not over.is_set():
            answers.append(engine.asks())

    try:
        expected = engine.asks()[0]
        [pid] = [p["pid"] for p in json.loads(command("ps", "--json")) if p["stats"]["devices"]]
        asking = threading.Thread(target=asks)
        asking.start()
        for to in ["1", "0"] * MOVES:
            time.sleep(random.random())
            begin = time.perf_counter()
            command("move", str(pid), "--to", to)
            took.append(time.perf_counter() - begin)
        over.set()
        asking.join()
        assert len(answers) > MOVES
        assert all(tokens == expected for tokens, _ in answers)
        longest = max(seconds for _, seconds in answers)
        median = statistics.median(took)
        print(f"\n{len(took)} moves: median {median:.2f} s, longest {max(took):.2f} s; ", end="")
        print(f"{len(answers)} answers, the longest took {longest:.2f} s")
    finally:
        over.set()
        engine.kill()
