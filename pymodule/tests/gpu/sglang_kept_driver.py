"""An sglang engine that says its first tokens and then serves on, until it is killed.

    python sglang_kept_driver.py FOLDER [--load-format F] [--saver] [--cache-gib N] [--prefixes]
        [--tp N] [--port N]

FOLDER has the checkpoint. Each line on stdout is one answer, as JSON; the first has the tokens, and
the seconds of the model's load. Then it answers lines on stdin: "token", "tokens" or "ask",
"samples N", "release", "resume", "update", and what moves it to other weights: "advance", "keep",
"back", "moves", which goes to and fro for good, "read FOLDER", "take FILE". With --port it answers
connections there instead, a line for each.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
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
    parser.add_argument("--tp", type=int, default=1, help="GPUs")
    parser.add_argument("--port", type=int, help="to be asked there, not on stdin")
    asked = parser.parse_args()
    loading = Path(tempfile.mkdtemp(), "loading")
    offline(**{LOADING: str(loading)})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what sglang prints is no answer
    engine: Any = sglang_engine(
        model_path=asked.folder,
        load_format=asked.load_format,
        tp_size=asked.tp,
        mem_fraction_static=0.8,
        max_total_tokens=asked.cache_gib and (asked.cache_gib << 30) // llama.TOKEN,
        cuda_graph_bs_decode=[1],
        disable_radix_cache=not asked.prefixes,
        enable_memory_saver=asked.saver,
        enable_weights_cpu_backup=asked.saver,
    )

    def generated(prompts: list[list[int]], count: int, temperature: float) -> list[list[int]]:
        sampling = {"temperature": temperature, "max_new_tokens": count, "ignore_eos": True}
        return [
            list(engine.generate(input_ids=prompt, sampling_params=sampling)["output_ids"])
            for prompt in prompts
        ]

    def tokens(count: int) -> list[list[int]]:
        return generated(llama.prompts(), count, 0.0)

    def moved(word: str, *arguments: str) -> dict[str, Any]:
        """Goes to other weights; says when the first token of these was there."""
        begin = time.monotonic()
        if word == "take":
            done, words = taken(Path(arguments[0]).read_bytes())
        elif word == "read":
            done, words = engine.update_weights_from_disk(arguments[0], "safetensors")[:2]
        else:
            load_format = {"advance": "tms", "keep": "tms-keep", "back": "tms-back"}[word]
            done, words = engine.update_weights_from_disk(asked.folder, load_format)[:2]
        if not done:
            raise RuntimeError(words)
        seconds = time.monotonic() - begin
        generated([llama.UNLIKE_OTHERS], 1, 0.0)
        version = re.search(r"version (\d+) of the set", words)
        return {
            "version": version and int(version[1]),
            "seconds": seconds,
            "dropped": True,  # it has said so: an update whose flush fails raises
            "end": time.monotonic(),
        }

    def taken(named: bytes) -> tuple[bool, str]:
        messages = importlib.import_module("sglang.srt.managers.io_struct")
        update = messages.UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[named] * asked.tp
        )
        update = engine.tokenizer_manager.update_weights_from_tensor(update, None)
        done, words = engine.loop.run_until_complete(update)
        return bool(done), str(words)

    def used() -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    seconds = float(loading.read_text())
    for line, answer in requests(asked.port, answers, first=tokens(1), loading=seconds):
        word, *rest = line.split()
        try:
            if word == "token":
                answer(tokens=tokens(1))
            elif word in ("tokens", "ask"):
                answer(tokens=tokens(24))
            elif word == "samples":
                several = [generated(llama.prompts(), 24, 1.0) for _ in range(int(rest[0]))]
                answer(samples=list(zip(*several)))
            elif word in ("advance", "keep", "back", "read", "take"):
                answer(**moved(word, *rest))
            elif word == "moves":
                while True:
                    moved("back")
                    moved("keep")
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
        except Exception as error:
            answer(error=str(error))


if __name__ == "__main__":
    main()
