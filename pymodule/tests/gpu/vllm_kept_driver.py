"""A vLLM engine that says its first tokens and then serves on, until it is killed.

    python vllm_kept_driver.py FOLDER LOAD_FORMAT [--sleep] [--extra JSON]
        [--cache-gib N] [--prefixes] [--tp N] [--transfer] [--port N]

FOLDER has the checkpoint. Each line on stdout is one JSON object; the first has the tokens, and the
seconds of the model's load. Then it answers lines on stdin: "token", "tokens", "ask", "samples N",
"sleep LEVEL", "wake", "reload", and what moves it to other weights: "advance", "keep", "back",
"moves", which goes to and fro for good, "read FOLDER", and with --transfer "take FILE". With --port
it answers connections there instead, a line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import llama
from driving import leaves_driver_when_asked, offline, requests

leaves_driver_when_asked()  # in each process that imports this file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("load_format")
    parser.add_argument("--sleep", action="store_true", help="sleep mode, by tms")
    parser.add_argument("--extra", type=json.loads, default={}, help="for the loader")
    parser.add_argument("--cache-gib", type=int, help="of the KV cache")
    parser.add_argument("--prefixes", action="store_true", help="are kept in the cache")
    parser.add_argument("--tp", type=int, default=1, help="GPUs")
    parser.add_argument("--transfer", action="store_true", help="takes weights by CUDA IPC")
    parser.add_argument("--port", type=int, help="to be asked there, not on stdin")
    asked = parser.parse_args()
    offline(
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_STREAM="ext://sys.stderr",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_HOST_IP="127.0.0.1",
    )
    settings: dict[str, Any] = {}
    if asked.sleep:
        os.environ["TMS_VLLM"] = "1"
    if asked.transfer:
        settings["weight_transfer_config"] = {"backend": "ipc"}
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    from vllm import LLM, SamplingParams

    llm: Any = LLM(
        model=asked.folder,
        load_format=asked.load_format,
        model_loader_extra_config=asked.extra,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=42,
        tensor_parallel_size=asked.tp,
        enable_sleep_mode=asked.sleep,
        # With a size, whatever is free now; but vLLM refuses less than a set has.
        gpu_memory_utilization=max(0.05, llama.WEIGHTS / 64) if asked.cache_gib else 0.5,
        kv_cache_memory_bytes=(asked.cache_gib or 12) << 30,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=4,
        enable_prefix_caching=asked.prefixes,
        generation_config="vllm",
        worker_extension_cls="vllm_driver.Probe",
        compilation_config={
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1],
        },
        **settings,
    )

    def generated(prompts: list[list[int]], count: int, **how: Any) -> list[list[int]]:
        sampling = SamplingParams(max_tokens=count, ignore_eos=True, detokenize=False, **how)
        return [
            list(answer.outputs[0].token_ids)
            for prompt in prompts
            for answer in llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        ]

    def tokens(count: int) -> list[list[int]]:
        return generated(llama.prompts(), count, temperature=0.0)

    def moved(word: str, *arguments: str) -> dict[str, Any]:
        """Goes to other weights; says when the first token of these was there."""
        begin = time.monotonic()
        version = None
        if word in ("advance", "keep"):
            version = llm.collective_rpc("tms_advance", kwargs={"back": word == "keep"})[0]
        elif word == "back":
            version = llm.collective_rpc("tms_back")[0]
        elif word == "read":
            llm.collective_rpc("reload_weights", kwargs={"weights_path": arguments[0]})
        else:
            info = json.loads(Path(arguments[0]).read_text())
            llm.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": {}})
            llm.collective_rpc("start_weight_update")
            llm.collective_rpc("update_weights", kwargs={"update_info": info})
            llm.collective_rpc("finish_weight_update")
        seconds = time.monotonic() - begin
        dropped = llm.reset_prefix_cache()
        generated([llama.UNLIKE_OTHERS], 1, temperature=0.0)
        return {
            "version": version,
            "seconds": seconds,
            "dropped": dropped,
            "end": time.monotonic(),
        }

    loading = llm.collective_rpc("probe_loading")[0]["seconds"]
    for line, answer in requests(asked.port, sys.stdout, first=tokens(1), loading=loading):
        word, *rest = line.split()
        try:
            if word == "tokens":
                answer(tokens=tokens(24), sums=llm.collective_rpc("probe_sums"))
            elif word == "token":
                answer(tokens=tokens(1))
            elif word == "ask":
                answer(tokens=tokens(24))
            elif word == "samples":
                several = range(int(rest[0]))
                how = [generated(llama.prompts(), 24, temperature=1.0, seed=i) for i in several]
                answer(samples=list(zip(*how)))
            elif word in ("advance", "keep", "back", "read", "take"):
                answer(**moved(word, *rest))
            elif word == "moves":
                while True:
                    moved("back")
                    moved("keep")
            elif word == "sleep":
                before = llm.collective_rpc("probe_used")
                llm.sleep(level=int(rest[0]))
                answer(freed=before[0] - llm.collective_rpc("probe_used")[0])
            elif word == "wake":
                llm.wake_up()
                answer()
            else:
                llm.collective_rpc("reload_weights")
                answer()
        except Exception as error:
            answer(error=str(error))


if __name__ == "__main__":
    main()
