"""The functions on pools that PyTorch's Python code calls."""

from .cuda import _memory

_cuda_beginAllocateCurrentThreadToPool = _memory.begin
_cuda_endAllocateToPool = _memory.end
_cuda_releasePool = _memory.release
