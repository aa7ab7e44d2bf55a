"""hook_mode "torch": PyTorch's memory pools get their memory from libtms.so; nothing is preloaded.

Everything works except what needs interposition: memory that libraries get from cudaMalloc by
themselves, and that a CUDA graph takes during its capture, is CUDA's own.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModeTorch(HookUtilBase):
    """The library as a `torch.cuda.memory.CUDAPluggableAllocator`."""

    def __init__(self) -> None:
        from torch.cuda.memory import CUDAPluggableAllocator

        # Use a preloaded library if there is one: pauses of another would not find its memory.
        preloaded = hasattr(ctypes.CDLL(None), "tms_torch_malloc")
        stem = "torch_memory_saver_hook_mode_torch"
        self._path = None if preloaded else str(get_binary_path_from_package(stem))
        self.allocator: Any = CUDAPluggableAllocator(
            self._path, "tms_torch_malloc", "tms_torch_free"
        )

    def get_path_binary(self) -> str | None:
        return self._path

    def get_allocator(self) -> Any:
        return self.allocator.allocator()
