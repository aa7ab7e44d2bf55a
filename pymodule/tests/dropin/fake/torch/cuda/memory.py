from __future__ import annotations

import ctypes
from typing import Any

from . import _memory

_cuda_beginAllocateCurrentThreadToPool = _memory.begin
_cuda_endAllocateToPool = _memory.end
_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class _Allocator:
    def __init__(self, malloc: int, free: int) -> None:
        self.malloc, self.free = _MALLOC(malloc), _FREE(free)


class CUDAPluggableAllocator:
    def __init__(self, path: str, malloc: str, free: str) -> None:
        library = ctypes.CDLL(path)
        addresses = [
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (malloc, free)
        ]
        self._allocator = _Allocator(*addresses)

    def allocator(self) -> _Allocator:
        return self._allocator


def _snapshot() -> dict[str, Any]:
    return {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": _memory.settings}}
