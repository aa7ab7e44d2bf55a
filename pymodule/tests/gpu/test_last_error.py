"""What CUDA's runtime remembers of a failure, in a region as outside."""

from __future__ import annotations

import ctypes

from device import torch_on_gpu

import tms

torch = torch_on_gpu()

OUT_OF_MEMORY, SUCCESS = 2, 0


def test_last_error(tag: str) -> None:
    """cudaGetLastError tells of a cudaMalloc that failed, once, and a sound one leaves no error."""
    torch.cuda.init()
    cuda = ctypes.CDLL(None)  # libtms.so is preloaded: these are its functions
    pointer = ctypes.c_void_p()
    too_much = ctypes.c_size_t(1 << 45)
    for region in (False, True):
        with tms.region(tag) if region else tms.disable():
            assert cuda.cudaMalloc(ctypes.byref(pointer), too_much) == OUT_OF_MEMORY
        assert cuda.cudaPeekAtLastError() == OUT_OF_MEMORY
        assert cuda.cudaGetLastError() == OUT_OF_MEMORY
        assert cuda.cudaGetLastError() == SUCCESS
