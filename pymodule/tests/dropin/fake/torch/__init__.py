"""A stand-in for PyTorch on the simulator: byte tensors, a caching allocator with pools, graphs.

It has the parts of PyTorch that pausing programs use, under PyTorch's names. The allocator keeps
what matters of c10/cuda/CUDACachingAllocator.cpp: a list per device of (pool, thread), the last of
which serves; use counts; caches per pool; and a retry after an out-of-memory error.
"""

from __future__ import annotations

import ctypes

from . import _C, cuda, nn, version
from .cuda._memory import OutOfMemoryError
from .cuda._tensor import CpuTensor, Tensor, empty, full, zeros

__version__ = "2.11.0"
uint8 = "torch.uint8"

__all__ = [
    "CpuTensor",
    "OutOfMemoryError",
    "Tensor",
    "_C",
    "cuda",
    "empty",
    "frombuffer",
    "full",
    "nn",
    "uint8",
    "version",
    "zeros",
]


def frombuffer(buffer: ctypes.Array[ctypes.c_uint8], *, dtype: str) -> CpuTensor:
    assert dtype == uint8
    return CpuTensor(memoryview(buffer).cast("B"))
