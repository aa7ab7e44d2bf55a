"""For tests of programs that pause."""

from __future__ import annotations

import torch

from .utils import is_xpu

__all__ = ["empty_cache", "get_and_print_gpu_memory", "get_device", "is_xpu"]


empty_cache = torch.cuda.empty_cache


def get_device() -> str:
    """The type of `device` in tests."""
    return "cuda"


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """Used bytes of a device, by all processes; also printed. (cudaMemGetInfo)"""
    free, total = torch.cuda.mem_get_info(gpu_id)
    used: int = total - free
    print(f"GPU {gpu_id} memory: {used / 2**30:.2f} GB ({message})")
    return used
