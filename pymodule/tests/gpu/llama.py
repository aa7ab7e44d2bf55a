"""The model that the engines of these tests run: 1.1 billion parameters with made-up values.

LLAMA_SHAPE names another of `SHAPES`.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SHAPES: dict[str, tuple[int, int, int, int, int]] = {
    "1B": (2048, 5632, 22, 16, 32000),
    "8B": (4096, 14336, 32, 32, 128256),  # as Llama 3.1 8B
    "32B": (5120, 27648, 64, 40, 152064),  # as Qwen2.5 32B, without its biases
    "70B": (8192, 28672, 80, 64, 128256),  # as Llama 3.1 70B
}
"""Width, inner width, layers, heads for queries, words; keys and values have eight heads of 128."""

WIDTH, INNER, LAYERS, QUERIES, WORDS = SHAPES[os.environ.get("LLAMA_SHAPE", "1B")]

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": QUERIES,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "vocab_size": WORDS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}

TOKEN = LAYERS * 2 * 8 * 128 * 2
"""Bytes of a token in the KV cache: layers, keys and values, heads, size of a head, bytes."""


def folder(with_weights: bool = False) -> str:
    """A folder with config.json: alone, so that engines make the weights up, or with weights."""
    path = Path(tempfile.mkdtemp())
    (path / "config.json").write_text(json.dumps(CONFIG))
    if with_weights:
        # In a process of its own, because vLLM forks: once OpenMP has made threads, as for
        # PyTorch's large tensors on the CPU, a forked process hangs or crashes in the next such
        # operation.
        command = [sys.executable, __file__, str(path / "model.safetensors")]
        subprocess.run(command, check=True)
    return str(path)


def shapes() -> list[dict[str, tuple[int, ...]]]:
    """The parameters' groups: those of no layer, in two parts, and each layer's."""
    c = CONFIG
    width, inner = c["hidden_size"], c["intermediate_size"]
    queries, keys = (c[f"num_{kind}_heads"] * c["head_dim"] for kind in ("attention", "key_value"))
    parts: list[dict[str, tuple[int, ...]]] = [
        {"model.embed_tokens.weight": (c["vocab_size"], width), "model.norm.weight": (width,)},
        {"lm_head.weight": (c["vocab_size"], width)},
    ]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        parts.append(
            {
                f"{at}.self_attn.q_proj.weight": (queries, width),
                f"{at}.self_attn.k_proj.weight": (keys, width),
                f"{at}.self_attn.v_proj.weight": (keys, width),
                f"{at}.self_attn.o_proj.weight": (width, queries),
                f"{at}.mlp.gate_proj.weight": (inner, width),
                f"{at}.mlp.up_proj.weight": (inner, width),
                f"{at}.mlp.down_proj.weight": (width, inner),
                f"{at}.input_layernorm.weight": (width,),
                f"{at}.post_attention_layernorm.weight": (width,),
            }
        )
    return parts


def weights() -> float:
    """GiB of the weights in bfloat16."""
    sizes = [math.prod(shape) for part in shapes() for shape in part.values()]
    return round(2 * sum(sizes) / 2**30, 2)


WEIGHTS = weights()


def write_weights(path: Path) -> None:
    """Made-up values: each tensor is cut from one pool of values at a place of its own."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(7)
    step = 4099
    every = {name: shape for part in shapes() for name, shape in part.items()}
    largest = max(math.prod(shape) for shape in every.values())
    pool = (torch.randn(largest + step * len(every)) * 0.02).to(torch.bfloat16)
    tensors = {}
    for i, (name, shape) in enumerate(every.items()):
        values = pool[step * i :][: math.prod(shape)].view(shape)
        tensors[name] = torch.ones_like(values) if len(shape) == 1 else values.clone()
    save_file(tensors, path, metadata={"format": "pt"})


UNLIKE_OTHERS = [2, 5, 7, 11]
"""A prompt that shares no beginning with `prompts`, in an engine's cache."""


def prompts() -> list[list[int]]:
    made = random.Random(1)
    return [[1, *(made.randrange(3, 32000) for _ in range(16 + 5 * i))] for i in range(3)]


if __name__ == "__main__":
    write_weights(Path(sys.argv[1]))
