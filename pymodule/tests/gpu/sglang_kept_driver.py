"""An sglang engine that says its first tokens and then serves on, until it is killed.

    python sglang_kept_driver.py FOLDER [--load-format F] [--saver] [--cache-gib N] [--prefixes]
        [--port N]

FOLDER has the checkpoint. Each line on stdout is one answer, as JSON; the first has the tokens, and
the seconds of the model's load. Then it answers lines on stdin: "token", "tokens" or "ask",
"release", "resume", "update". With --port it answers connections there instead, a line for each.
"""

from __future__ import annotations

import argparse
import importlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import llama
from driving import leaves_driver_when_asked, offline, requests, sglang_engine

LOADING = "SGLANG_TEST_LOADING"
"""The variable with the path of a file, for the seconds of the scheduler's load."""

leaves_driver_when_asked()  # in each process that imports this file

if __name__ == "__mp_main__":  # sglang's processes import this file before they begin
    runner: Any = importlib.import_module("sglang.srt.model_executor.model_runner").ModelRunner
    _load_model = runner.load_model

    def _timed(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        done = _load_model(*arguments, **named)
        Path(os.environ[LOADING]).write_text(str(time.perf_counter() - begun))
        return done

    runner.load_model = _timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--load-format", default="safetensors")
    parser.add_argument("--saver", action="store_true", help="memory can be released")
    parser.add_argument("--cache-gib", type=int, help="of the KV cache")
    parser.add_argument("--prefixes", action="store_true", help="are kept in the cache")
    parser.add_argument("--port", type=int, help="to be asked there, not on stdin")
    asked = parser.parse_args()
    loading = Path(tempfile.mkdtemp(), "loading")
    offline(**{LOADING: str(loading)})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what sglang prints is no answer
    engine: Any = sglang_engine(
        model_path=asked.folder,
        load_format=asked.load_format,
        mem_fraction_static=0.8,
        max_total_tokens=asked.cache_gib and (asked.cache_gib << 30) // llama.TOKEN,
        cuda_graph_bs_decode=[1],
        disable_radix_cache=not asked.prefixes,
        enable_memory_saver=asked.saver,
        enable_weights_cpu_backup=asked.saver,
    )

    def tokens(count: int) -> list[list[int]]:
        sampling = {"temperature": 0.0, "max_new_tokens": count, "ignore_eos": True}
        return [
            list(engine.generate(input_ids=prompt, sampling_params=sampling)["output_ids"])
            for prompt in llama.prompts()
        ]

    def used() -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    seconds = float(loading.read_text())
    for word, answer in requests(asked.port, answers, first=tokens(1), loading=seconds):
        if word == "token":
            answer(tokens=tokens(1))
        elif word in ("tokens", "ask"):
            answer(tokens=tokens(24))
        elif word == "release":
            before = used()
            engine.release_memory_occupation()
            answer(freed=before - used())
        elif word == "resume":
            engine.resume_memory_occupation()
            answer()
        else:
            done, words = engine.update_weights_from_disk(asked.folder)[:2]
            answer(done=done, words=words)


if __name__ == "__main__":
    main()
