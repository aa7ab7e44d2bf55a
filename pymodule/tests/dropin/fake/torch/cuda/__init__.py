from __future__ import annotations

import ctypes
import os

import cuda as runtime

from . import _memory, memory
from ._graph import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing
from ._memory import (
    MemPool,
    current_device,
    empty_cache,
    memory_snapshot,
    set_device,
    use_mem_pool,
)

__all__ = [
    "CUDAGraph",
    "MemPool",
    "current_device",
    "empty_cache",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "memory",
    "memory_snapshot",
    "set_device",
    "use_mem_pool",
]


def _maybe_exchange_device(device: int) -> int:
    before = _memory._device
    _memory._device = device  # as where the device has no context yet
    return before


def device_count() -> int:
    return int(os.environ["CUDASIM_DEVICES"])


def get_allocator_backend() -> str:
    return "native"


def init() -> None:
    pass


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def mem_get_info(device: int | None = None) -> tuple[int, int]:
    with _memory.on_device(device):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        runtime.check(runtime._runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def memory_reserved() -> int:
    """Bytes that the caching allocator holds on the current device, cached or in use."""
    return _memory.reserved[current_device()]


def synchronize() -> None:
    runtime.check(runtime._runtime.cudaDeviceSynchronize())
