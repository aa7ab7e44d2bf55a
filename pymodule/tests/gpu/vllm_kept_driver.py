"""A vLLM engine that says its first tokens and then serves on, until it is killed.

    python vllm_kept_driver.py FOLDER LOAD_FORMAT [--sleep] [--extra JSON]
        [--cache-gib N] [--prefixes] [--port N]

FOLDER has the checkpoint. Each line on stdout is one JSON object; the first has the tokens, and the
seconds of the model's load. Then it answers lines on stdin: "token", "tokens", "ask",
"sleep LEVEL", "wake", "reload". With --port it answers connections there instead, a line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
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
    parser.add_argument("--port", type=int, help="to be asked there, not on stdin")
    asked = parser.parse_args()
    offline(
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_STREAM="ext://sys.stderr",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_HOST_IP="127.0.0.1",
    )
    if asked.sleep:
        os.environ["TMS_VLLM"] = "1"
    from vllm import LLM, SamplingParams

    llm: Any = LLM(
        model=asked.folder,
        load_format=asked.load_format,
        model_loader_extra_config=asked.extra,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=42,
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
    )

    def tokens(count: int) -> list[list[int]]:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        return [
            list(answer.outputs[0].token_ids)
            for prompt in llama.prompts()
            for answer in llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        ]

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
