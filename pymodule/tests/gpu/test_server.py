"""A server lends its GPU: transformers' Llama generates the same tokens after a pause."""

from __future__ import annotations

from typing import Any

import pytest
from device import MiB, free_memory, torch_on_gpu

import tms

torch = torch_on_gpu()
transformers = pytest.importorskip("transformers")

PROMPTS, LENGTH, NEW = 4, 96, 48


@pytest.fixture(scope="module")
def model() -> Any:
    """Llama-shaped, 1.1 billion parameters, random weights, made in the region "weights"."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=22,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        dtype="bfloat16",
    )
    torch.manual_seed(11)
    with tms.region("weights", backup="host"), torch.device("cuda"):
        made = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    made.generation_config.pad_token_id = 0
    made.generation_config.eos_token_id = None
    return made


def generate(model: Any, prompts: Any) -> tuple[Any, Any]:
    """Tokens, greedy, and the static KV cache, made in the region "kv_cache"."""
    with tms.region("kv_cache"):
        cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH + NEW)
        with torch.no_grad():  # the first step makes the cache's tensors
            first = model(prompts, past_key_values=cache, use_cache=True).logits
    del first
    cache.reset()
    return greedy(model, prompts, cache), cache


def random_prompts(seed: int) -> Any:
    made = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(1, 32000, (PROMPTS, LENGTH), device="cuda", generator=made)


def greedy(model: Any, prompts: Any, cache: Any) -> Any:
    with torch.no_grad():
        return model.generate(
            prompts, max_new_tokens=NEW, do_sample=False, past_key_values=cache, use_cache=True
        )


def test_same_tokens_after_a_pause(model: Any) -> None:
    prompts = random_prompts(5)
    expected, cache = generate(model, prompts)
    expected = expected.clone()
    assert expected.shape == (PROMPTS, LENGTH + NEW)
    weights = sum(p.nbytes for p in model.parameters())
    for _ in range(2):
        before = free_memory()
        tms.pause("kv_cache")
        tms.pause("weights")
        freed = free_memory() - before
        assert freed >= weights
        lent = torch.empty(freed - 64 * MiB, dtype=torch.uint8, device="cuda").fill_(255)
        del lent
        torch.cuda.empty_cache()
        tms.resume("weights")
        tms.resume("kv_cache")
        cache.reset()
        assert torch.equal(greedy(model, prompts, cache), expected)


def test_a_pause_in_the_middle_of_a_generation(model: Any) -> None:
    """With the cache also kept, the second half of the tokens comes after the pause."""
    prompts = random_prompts(6)

    def steps(pause_at: int | None) -> list[Any]:
        with tms.region("kept_cache", backup="host", incremental=True), torch.no_grad():
            cache = transformers.StaticCache(config=model.config, max_cache_len=LENGTH + NEW)
            logits = model(prompts, past_key_values=cache, use_cache=True).logits
        token, tokens = logits[:, -1].argmax(-1, keepdim=True), []
        for step in range(NEW - 1):
            if step == pause_at:
                tms.pause("kept_cache")
                tms.pause("weights")
                tms.resume("weights")
                tms.resume("kept_cache")
            tokens.append(token)
            position = torch.tensor([LENGTH + step], device="cuda")
            with torch.no_grad():
                logits = model(
                    token, past_key_values=cache, cache_position=position, use_cache=True
                ).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
        return tokens

    assert all(map(torch.equal, steps(None), steps(NEW // 2)))
