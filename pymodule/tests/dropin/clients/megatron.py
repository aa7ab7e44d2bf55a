"""The calls of Megatron-LM, in its order.

NVIDIA/Megatron-LM, main of 2026-05. Several modules set hook_mode "torch" at import (megatron/core/
inference/contexts/dynamic_context.py, megatron/training/training.py). DynamicInferenceContext makes
its cache in a region with a CPU backup, and rebuilds it by pausing the tag and dropping the pools,
asking for keys of two elements, which older versions had. megatron/rl/rl_utils.py swaps the
inference model out and in.
"""

from __future__ import annotations

import gc

import torch
from common import SIZE, SLACK, free, full, holds, initially_free

try:
    from torch_memory_saver import torch_memory_saver

    torch_memory_saver.hook_mode = "torch"
    HAVE_TORCH_MEMORY_SAVER = True
except ImportError:
    HAVE_TORCH_MEMORY_SAVER = False


def main() -> None:
    assert HAVE_TORCH_MEMORY_SAVER
    initial = initially_free()
    with torch_memory_saver.region(tag="rl_inference_model", enable_cpu_backup=True):
        model = full(1)
    torch_memory_saver.hook_mode = "torch"  # as a module imported late does
    with torch_memory_saver.region(tag="kv_cache", enable_cpu_backup=True):
        cache = torch.empty((2, SIZE), dtype=torch.uint8, device="cuda")
    cache.fill_(2)
    ordinary = full(3)
    addresses = model.data_ptr(), cache.data_ptr()

    for _ in range(3):
        before = free()
        torch_memory_saver.pause("rl_inference_model")
        assert free() - before >= SIZE - SLACK
        torch_memory_saver.pause("kv_cache")
        assert free() - before >= 3 * SIZE - SLACK
        assert holds(ordinary, 3)
        torch_memory_saver.resume("kv_cache")
        torch_memory_saver.resume("rl_inference_model")
        assert abs(free() - before) <= SLACK
        assert holds(model, 1)
        assert holds(cache, 2)
    assert (model.data_ptr(), cache.data_ptr()) == addresses

    torch_memory_saver.pause("kv_cache")
    pools = torch_memory_saver._impl._mem_pools
    for backup in (True, False):
        pools.pop(("kv_cache", backup), None)
    pools.pop(("kv_cache", True, False, "pinned", torch.cuda.current_device()))
    del cache
    gc.collect()
    torch.cuda.empty_cache()
    with torch_memory_saver.region(tag="kv_cache", enable_cpu_backup=True):
        cache = torch.empty((2, SIZE // 2), dtype=torch.uint8, device="cuda")
    cache.fill_(4)
    assert holds(cache, 4)
    assert initial - free() <= 3 * SIZE + SLACK
    print("Megatron-LM done")


if __name__ == "__main__":
    main()
