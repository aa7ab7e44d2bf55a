"""The model that the engines of these tests run: 1.1 billion parameters with made-up values."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

WEIGHTS = 2.18
"""GiB of its weights in bfloat16."""


def folder() -> str:
    """A folder with config.json alone: the engines make the weights up."""
    path = Path(tempfile.mkdtemp())
    (path / "config.json").write_text(json.dumps(CONFIG))
    return str(path)


def prompts() -> list[list[int]]:
    made = random.Random(1)
    return [[1, *(made.randrange(3, 32000) for _ in range(16 + 5 * i))] for i in range(3)]
