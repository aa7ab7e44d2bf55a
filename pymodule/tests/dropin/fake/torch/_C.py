"""The functions on pools, and on the allocator's settings, that PyTorch's Python code calls."""

from .cuda import _memory, memory

_cuda_beginAllocateCurrentThreadToPool = _memory.begin
_cuda_endAllocateToPool = _memory.end
_cuda_releasePool = _memory.release
_cuda_customAllocator = memory._Allocator
_accelerator_setAllocatorSettings = _memory.set_settings
