"""The calls of NeMo-RL, in its order.

NVIDIA-NeMo/RL, main of 2026, nemo_rl/models/megatron/memory_saver.py: hook_mode "torch" at import;
a function returns the region for the inference model, which is entered elsewhere; its weights are
paused and resumed around the training. Frees come from other threads, and outside of regions.
"""

from __future__ import annotations

import threading

from common import SIZE, SLACK, free, full, holds, initially_free

try:
    from torch_memory_saver import torch_memory_saver

    torch_memory_saver.hook_mode = "torch"
    HAVE_TORCH_MEMORY_SAVER = True
except ImportError:
    HAVE_TORCH_MEMORY_SAVER = False

TAG = "nemo_rl_megatron_inference_model"


def main() -> None:
    assert HAVE_TORCH_MEMORY_SAVER
    initial = initially_free()
    region = torch_memory_saver.region(tag=TAG, enable_cpu_backup=True)
    training = full(7)
    with region:
        weights = [full(n) for n in (1, 2, 3)]
    for _ in range(2):
        torch_memory_saver.pause(TAG)
        torch_memory_saver.pause(TAG)
        assert initial - free() <= SIZE + SLACK
        assert holds(torch_memory_saver.get_cpu_backup(weights[1]), 2)
        assert holds(training, 7)
        torch_memory_saver.resume(TAG)
        torch_memory_saver.resume(TAG)
        assert all(holds(tensor, n) for n, tensor in enumerate(weights, 1))
        assert torch_memory_saver.get_cpu_backup(weights[1]) is None

    thread = threading.Thread(target=weights.clear)
    thread.start()
    thread.join()
    torch_memory_saver._impl._mem_pools.clear()
    assert initial - free() <= SIZE + SLACK
    print("NeMo-RL done")


if __name__ == "__main__":
    main()
