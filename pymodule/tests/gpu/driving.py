"""What the drivers of engines share."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import llama

BEGUN = time.perf_counter()


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGUN:7.2f}]", *words, file=sys.stderr, flush=True)


def offline(**variables: str) -> None:
    """Nothing is fetched, and ranks meet on this machine; the environment's values come first."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **variables,
    }.items():
        os.environ.setdefault(name, value)


def sglang_engine(**settings: Any) -> Any:
    """An sglang.Engine of the model, with its memory in torch_memory_saver."""
    import sglang

    defaults: dict[str, Any] = {
        "model_path": settings.get("model_path") or llama.folder(),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "random_seed": 42,
        "attention_backend": "fa3",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "enable_memory_saver": True,
        "disable_radix_cache": True,  # everything is computed each time
        "max_running_requests": 16,
        "cuda_graph_bs_decode": [1, 2, 4],
        "disable_prefill_cuda_graph": True,
        "disable_flashinfer_autotune": True,
        "log_level": "warning",
    }
    return sglang.Engine(**{**defaults, **settings})
