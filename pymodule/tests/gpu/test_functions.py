"""CUDA's allocation functions called directly, as a C program would, in and out of regions."""

from __future__ import annotations

import ctypes
import time
from ctypes import POINTER, Structure, byref, c_int, c_size_t, c_void_p
from typing import Any

import pytest
from device import MiB, free_memory, output, torch_on_gpu

import tms

torch = torch_on_gpu()

SIZE = 256 * MiB
SLACK = 8 * MiB
DEVICE_MEMORY = 2  # cudaMemoryTypeDevice

# The functions that the dynamic loader gives any program in this process: libtms.so's.
cuda: Any = ctypes.CDLL(None)


class Extent(Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t)]


class Pitched(Structure):
    _fields_ = [("pointer", c_void_p), ("pitch", c_size_t), ("width", c_size_t), ("h", c_size_t)]


class Attributes(Structure):
    _fields_ = [
        ("type", c_int),
        ("device", c_int),
        ("device_pointer", c_void_p),
        ("host_pointer", c_void_p),
        ("reserved", ctypes.c_long * 8),
    ]


def stream() -> c_void_p:
    return c_void_p(torch.cuda.current_stream().cuda_stream)


def allocate(name: str) -> int:
    pointer, pitch, width, rows = c_void_p(), c_size_t(), 64 * 1024, SIZE // (64 * 1024)
    if name == "cudaMallocPitch":
        code = cuda[name](byref(pointer), byref(pitch), c_size_t(width - 5), c_size_t(rows))
        assert pitch.value == width
    elif name == "cudaMalloc3D":
        pitched = Pitched()
        cuda[name].argtypes = [POINTER(Pitched), Extent]
        code = cuda[name](byref(pitched), Extent(width - 5, rows // 8, 8))
        assert pitched.pitch == width
        pointer = c_void_p(pitched.pointer)
    elif name == "cudaMallocAsync":
        code = cuda[name](byref(pointer), c_size_t(SIZE), stream())
    else:
        code = cuda[name](byref(pointer), c_size_t(SIZE))
    assert code == 0, name
    assert pointer.value
    return pointer.value


ALLOCATORS = ["cudaMalloc", "cudaMallocPitch", "cudaMalloc3D", "cudaMallocAsync", "cuMemAlloc_v2"]


@pytest.mark.parametrize("name", ALLOCATORS)
def test_pausable_in_a_region(name: str, tag: str) -> None:
    torch.cuda.init()
    torch.ones(1, device="cuda")
    before = free_memory()
    with tms.region(tag, backup="host"):
        pointer = allocate(name)
    assert abs(before - free_memory() - SIZE) <= SLACK
    tms.pause(tag)
    assert abs(before - free_memory()) <= SLACK
    tms.resume(tag)
    assert abs(before - free_memory() - SIZE) <= SLACK
    assert cuda.cudaFree(c_void_p(pointer + 4096)) == 1
    assert cuda.cudaGetLastError() == 1  # PyTorch's next kernel would take it for its own error
    assert cuda.cudaFree(c_void_p(pointer)) == 0
    assert abs(before - free_memory()) <= SLACK


@pytest.mark.parametrize("name", ALLOCATORS)
def test_real_outside(name: str) -> None:
    torch.ones(1, device="cuda")
    pointer = allocate(name)
    before = free_memory()
    tms.pause()
    assert abs(before - free_memory()) <= SLACK
    tms.resume()
    assert cuda.cudaFree(c_void_p(pointer)) == 0


def test_stream_ordered_free(tag: str) -> None:
    """It returns at once; the memory goes only when the stream has come to the free."""
    torch.ones(1, device="cuda")
    with tms.region(tag):
        pointer = allocate("cudaMallocAsync")
    before = free_memory()
    torch.cuda._sleep(int(1e9))  # about half a second on the stream
    begin = time.perf_counter()
    assert cuda.cudaFreeAsync(c_void_p(pointer), stream()) == 0
    took = time.perf_counter() - begin
    held = before - torch.cuda.mem_get_info()[0]
    busy = not torch.cuda.current_stream().query()
    assert busy
    assert abs(held) <= SLACK
    assert took < 0.01
    torch.cuda.synchronize()
    deadline = time.perf_counter() + 2
    while free_memory() - before < SIZE - SLACK and time.perf_counter() < deadline:
        time.sleep(0.001)
    assert free_memory() - before >= SIZE - SLACK


def test_pointer_attributes(tag: str) -> None:
    torch.ones(1, device="cuda")
    with tms.region(tag):
        pointer = allocate("cudaMalloc")
    with tms.disable():
        ordinary = allocate("cudaMalloc")

    def attributes(address: int) -> tuple[int, int, int | None, int | None]:
        a = Attributes()
        assert cuda.cudaPointerGetAttributes(byref(a), c_void_p(address)) == 0
        return a.type, a.device, a.device_pointer, a.host_pointer

    assert attributes(ordinary)[:3] == (DEVICE_MEMORY, 0, ordinary)
    assert attributes(pointer + 100)[:3] == (DEVICE_MEMORY, 0, pointer + 100)
    with tms.paused(tag):
        assert attributes(pointer + 100) == (DEVICE_MEMORY, 0, pointer + 100, None)
    assert cuda.cudaFree(c_void_p(pointer)) == 0
    assert cuda.cudaFree(c_void_p(ordinary)) == 0


def test_device_reset() -> None:
    """All of our memory goes, paused or not; the device can be used again, also in regions."""
    program = """
import ctypes, glob, os, tms, torch
from ctypes import byref, c_size_t, c_void_p
directory = os.path.join(os.path.dirname(torch.__file__), "..", "nvidia")
paths = glob.glob(os.path.join(directory, "**", "libcudart.so.1*"), recursive=True)
paths = paths or ["libcudart.so.13"]
cuda = ctypes.CDLL(paths[0], mode=ctypes.RTLD_GLOBAL)
process = ctypes.CDLL(None)
free, total = c_size_t(), c_size_t()
def unused():
    assert cuda.cudaMemGetInfo(byref(free), byref(total)) == 0
    return free.value
def allocate(backup):
    pointer = c_void_p()
    with tms.region("reset", backup=backup):
        assert process.cudaMalloc(byref(pointer), c_size_t(256 << 20)) == 0
    return pointer
assert cuda.cudaFree(None) == 0
before = unused()
for cycle in range(3):
    kept, lost = allocate("host"), allocate(None)
    tms.pause()
    tms.resume()
    assert before - unused() >= 500 << 20
    if cycle == 1:
        tms.pause()
    assert process.cudaDeviceReset() == 0
    assert abs(unused() - before) < 64 << 20, (unused(), before)
    assert process.cudaFree(kept) == 1
print("as new", tms.stats()["devices"])
"""
    assert output(program).startswith("as new")
