"""Calls that name memory which the program has paused itself: an error that says so, and no crash.

libtms.so alone is preloaded here, so nothing holds the calls.
"""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint64, c_void_p
from typing import Any

import pytest
from device import MiB, torch_on_gpu

import tms

torch = torch_on_gpu()

cuda: Any = ctypes.CDLL(None)  # the preloaded library's functions

SUCCESS, INVALID_VALUE = 0, 1
DEFAULT = 4  # the kind of a copy
SIZE = 4 * MiB


def test_copies_of_paused_memory(tag: str) -> None:
    """Where the call leaves the direction to the driver, it took the address for host memory."""
    torch.cuda.init()
    pointer = c_void_p()
    with tms.region(tag, backup="host"):
        assert cuda.cudaMalloc(ctypes.byref(pointer), c_size_t(SIZE)) == SUCCESS
    assert cuda.cudaMemset(pointer, 7, c_size_t(SIZE)) == SUCCESS
    host = ctypes.create_string_buffer(4096)
    count, row = c_size_t(4096), c_size_t(64)
    address, other = c_uint64(pointer.value or 0), c_uint64(ctypes.addressof(host))
    calls = {
        "cudaMemcpy": (host, pointer, count, DEFAULT),
        "cudaMemcpyAsync": (pointer, host, count, DEFAULT, None),
        "cudaMemcpy2D": (host, row, pointer, c_size_t(512), row, row, DEFAULT),
        "cudaMemset": (pointer, 7, count),
        "cuMemcpy": (other, address, count),
        "cuMemcpyAsync": (address, other, count, None),
    }
    try:
        tms.pause(tag)
        for name, arguments in calls.items():
            assert getattr(cuda, name)(*arguments) == INVALID_VALUE, name
            assert tms.last_error().startswith(f"{name} was refused (1): 0x"), name
            cuda.cudaGetLastError()
        tms.resume(tag)
        for name, arguments in calls.items():
            assert getattr(cuda, name)(*arguments) == SUCCESS, name
        torch.cuda.synchronize()
    finally:
        assert cuda.cudaFree(pointer) == SUCCESS


def test_graph_of_paused_memory(tag: str) -> None:
    """CUDA may refuse a graph of paused memory, and says so. It works when the memory is back."""
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError:
        pytest.skip("this torch keeps no graphs")
    with tms.region(tag, backup="host"):
        source = torch.arange(MiB, dtype=torch.int32, device="cuda")
        target = torch.zeros(MiB, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        target.copy_(source)
    tms.pause(tag)
    refused = False
    try:
        graph.instantiate()
    except RuntimeError as error:
        refused = True
        assert "invalid argument" in str(error)
        assert f'while tag "{tag}" is paused' in tms.last_error()
    finally:
        tms.resume(tag)
    if refused:
        graph.instantiate()
    graph.replay()
    assert torch.equal(target, source)
