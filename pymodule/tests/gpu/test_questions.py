"""What the driver says of pausable memory: the same while it is paused.

Prints its table (`pytest -s`): an attribute's code and bytes for plain memory, and for a region's
while it is active and paused.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import pytest
from device import MiB, torch_on_gpu

import tms

torch = torch_on_gpu()

cuda: Any = ctypes.CDLL(None)  # the preloaded library's functions
driver: Any = ctypes.CDLL("libcuda.so.1")

SIZE = 4 * MiB
NAMES = {
    1: "CONTEXT",
    2: "MEMORY_TYPE",
    3: "DEVICE_POINTER",
    4: "HOST_POINTER",
    6: "SYNC_MEMOPS",
    7: "BUFFER_ID",
    8: "IS_MANAGED",
    9: "DEVICE_ORDINAL",
    10: "IS_LEGACY_CUDA_IPC_CAPABLE",
    11: "RANGE_START_ADDR",
    12: "RANGE_SIZE",
    13: "MAPPED",
    14: "ALLOWED_HANDLE_TYPES",
    15: "IS_GPU_DIRECT_RDMA_CAPABLE",
    16: "ACCESS_FLAGS",
    17: "MEMPOOL_HANDLE",
    18: "MAPPING_SIZE",
    19: "MAPPING_BASE_ADDR",
    20: "MEMORY_BLOCK_ID",
    21: "IS_HW_DECOMPRESS_CAPABLE",
}
# CUDA gives memory new numbers at a resume, and the mapping may be a larger one.
CHANGE = {7, 18, 19, 20}
CONTEXT, SYNC_MEMOPS = 1, 6
CTX_SYNC_MEMOPS = 0x80

Answers = dict[int, tuple[int, bytes]]


def malloc() -> int:
    pointer = c_void_p()
    assert cuda.cudaMalloc(byref(pointer), c_size_t(SIZE)) == 0
    assert pointer.value
    return pointer.value


def ask(address: int) -> Answers:
    """Each attribute's code, and the bytes that the driver has written over a pattern."""
    answers = {}
    for number in NAMES:
        place = (ctypes.c_uint8 * 16)(*[0xA5] * 16)
        code = cuda.cuPointerGetAttribute(place, number, c_uint64(address))
        answers[number] = (code, bytes(place))
    return answers


def ask_together(address: int) -> bytes:
    numbers = [number for number in NAMES if number not in CHANGE | {4, 21}]
    places = (ctypes.c_uint8 * (16 * len(numbers)))(*[0xA5] * (16 * len(numbers)))
    pointers = (c_void_p * len(numbers))(
        *(ctypes.addressof(places) + 16 * i for i in range(len(numbers)))
    )
    code = cuda.cuPointerGetAttributes(
        len(numbers), (c_int * len(numbers))(*numbers), pointers, c_uint64(address)
    )
    assert code == 0
    return bytes(places)


@pytest.mark.parametrize("tag", ["questions"])
def test_answers_are_those_of_active_memory(tag: str) -> None:
    torch.zeros(1, device="cuda")
    with tms.exclude():
        plain = malloc()
    with tms.region(tag, backup="host"):
        ours = malloc()
    before, together = ask(ours + 100), ask_together(ours + 100)
    tms.pause(tag)
    paused, paused_together = ask(ours + 100), ask_together(ours + 100)
    tms.resume(tag)
    after = ask(ours + 100)
    of_plain = ask(plain + 100)
    for number, name in NAMES.items():
        row = (of_plain[number], before[number], paused[number])
        print(f"{name:28s}", *(f"{code:4d} {written.hex():32s}" for code, written in row))
    for number, name in NAMES.items():
        assert before[number][0] == paused[number][0] == after[number][0], name
        if number not in CHANGE:
            assert before[number] == paused[number] == after[number], name
    assert together == paused_together
    assert cuda.cudaFree(c_void_p(ours)) == 0
    assert cuda.cudaFree(c_void_p(plain)) == 0


def test_memory_is_as_cudamallocs() -> None:
    torch.zeros(1, device="cuda")
    with tms.region("communication", backup="host"):
        ours = malloc()
    context, current, flags = c_void_p(), c_void_p(), c_uint()
    assert driver.cuCtxGetCurrent(byref(current)) == 0
    assert cuda.cuPointerGetAttribute(byref(context), CONTEXT, c_uint64(ours)) == 0
    assert context.value == current.value
    print(
        "SYNC_MEMOPS of mapped memory, by the driver alone:",
        driver.cuPointerSetAttribute(byref(c_uint(1)), SYNC_MEMOPS, c_uint64(ours)),
    )
    assert cuda.cuPointerSetAttribute(byref(c_uint(1)), SYNC_MEMOPS, c_uint64(ours)) == 0
    assert driver.cuCtxGetFlags(byref(flags)) == 0
    assert flags.value & CTX_SYNC_MEMOPS
    assert driver.cuCtxSetFlags(flags.value & ~CTX_SYNC_MEMOPS) == 0
    assert cuda.cudaFree(c_void_p(ours)) == 0


@pytest.mark.parametrize("tag", ["refused"])
def test_what_paused_memory_cannot(tag: str) -> None:
    """The program has paused it itself: copies and registration fail, and the context lives."""
    torch.zeros(1, device="cuda")
    with tms.region(tag, backup="host"):
        ours = malloc()
    host = ctypes.create_string_buffer(4096)
    tms.pause(tag)
    codes = {
        "cudaMemcpy": cuda.cudaMemcpy(host, c_void_p(ours), c_size_t(4096), 2),
        "cudaMemset": cuda.cudaMemset(c_void_p(ours), 0, c_size_t(4096)),
        "cudaHostRegister": cuda.cudaHostRegister(c_void_p(ours), c_size_t(SIZE), 0),
    }
    beside = ctypes.create_string_buffer(4096)
    assert cuda.cudaMemcpy(beside, host, c_size_t(4096), 0) == 0  # between host buffers
    cuda.cudaGetLastError()
    tms.resume(tag)
    print(codes)
    assert all(codes.values())
    torch.cuda.synchronize()
    assert cuda.cudaFree(c_void_p(ours)) == 0
