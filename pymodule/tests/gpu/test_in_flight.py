"""Work in flight ends before its memory goes, on any stream and from any thread."""

from __future__ import annotations

import ctypes
import textwrap
import threading
from typing import Any

import pytest
from device import MiB, holds, output, torch_on_gpu

import tms

torch = torch_on_gpu()

SIZE = 64 * MiB
CYCLES = int(1e9)  # of the device's clock: about half a second

cuda: Any = ctypes.CDLL(None)  # the names as any program of this process finds them: libtms.so's


def in_region(tag: str, device: int = 0) -> ctypes.c_void_p:
    """Memory with contents to keep, from cudaMalloc itself."""
    pointer = ctypes.c_void_p()
    with torch.cuda.device(device), tms.region(tag, backup="host"):
        assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(SIZE)) == 0
    return pointer


def byte_at(pointer: ctypes.c_void_p, offset: int) -> int:
    byte = ctypes.c_uint8()
    source = ctypes.c_void_p((pointer.value or 0) + offset)
    assert cuda.cudaMemcpy(ctypes.byref(byte), source, ctypes.c_size_t(1), 2) == 0
    return byte.value


def test_of_another_thread(tag: str) -> None:
    """A pause finds the work running, and saves what it finally writes."""
    with tms.region(tag, backup="host"):
        tensor = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for value in range(2, 5):
        side, begun, paused = torch.cuda.Stream(), threading.Event(), threading.Event()

        def work(
            side: Any = side, begun: Any = begun, paused: Any = paused, n: int = value
        ) -> None:
            with torch.cuda.stream(side):
                torch.cuda._sleep(CYCLES)
                tensor.fill_(n)
            begun.set()
            paused.wait(60)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            assert begun.wait(60)
            running = not side.query()
            tms.pause(tag)
            done = side.query()
            tms.resume(tag)
        finally:
            paused.set()
            worker.join()
        assert running
        assert done
        assert holds(tensor, value)


@pytest.mark.parametrize("paused", [False, True])
def test_freed_while_another_stream_writes(paused: bool, tag: str) -> None:
    """cudaFree waits, like the real one; the other of two segments on the device is kept."""
    torch.cuda.init()
    pointer, other = in_region(tag), in_region(f"{tag} other")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        for target in (pointer, other):
            code = cuda.cudaMemsetAsync(
                target, 7, ctypes.c_size_t(SIZE), ctypes.c_void_p(side.cuda_stream)
            )
            assert code == 0
    running = not side.query()
    if paused:
        tms.pause(tag)
    assert cuda.cudaFree(pointer) == 0
    done = side.query()
    assert running
    assert done
    tms.pause(f"{tag} other")
    tms.resume(f"{tag} other")
    assert byte_at(other, 0) == byte_at(other, SIZE - 1) == 7
    assert cuda.cudaFree(other) == 0


DRIVER = """
import ctypes, time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
import tms

SIZE = 8 << 20
ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
cuda = ctypes.CDLL(None)  # libtms.so's, where it has one
cuda.tms_last_error.restype = ctypes.c_char_p

def create():
    context = c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(byref(context), c_uint(0), c_int(0)) == 0
    return context

def allocate():
    address = c_uint64()
    with tms.region("t", backup="host"):
        code = cuda.cuMemAlloc_v2(byref(address), c_size_t(SIZE))
    assert code == 0, (code, cuda.tms_last_error())
    return address

def byte_at(address, offset):
    byte = ctypes.c_uint8()
    assert cuda.cuMemcpyDtoH_v2(byref(byte), c_uint64(address.value + offset), c_size_t(1)) == 0
    return byte.value

naps = []

@ctypes.CFUNCTYPE(None, c_void_p)
def nap(_):
    time.sleep(0.5)
    naps.append(True)

def busy(address):
    '''A stream of the current context that sets the memory to 9 in half a second.'''
    stream = c_void_p()
    assert cuda.cuStreamCreate(byref(stream), c_uint(1)) == 0
    assert cuda.cuLaunchHostFunc(stream, nap, None) == 0
    assert cuda.cuMemsetD8Async(address, ctypes.c_ubyte(9), c_size_t(SIZE), stream) == 0
    assert not naps
    return stream
"""


def in_driver_program(program: str) -> None:
    """Runs code that has no CUDA runtime and no PyTorch; it must succeed."""
    assert output(DRIVER + textwrap.dedent(program) + '\nprint("done")\n') == "done\n"


@pytest.mark.parametrize("current", [True, False])
def test_of_a_context_of_the_programs_own(current: bool) -> None:
    """The context is made by the driver's API; the pause comes with it current, or with none."""
    in_driver_program(
        f"""
        context = create()
        address = allocate()
        for cycle in range(2):
            assert cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(1), c_size_t(SIZE)) == 0
            stream = busy(address)
            if not {current}:
                assert cuda.cuCtxSetCurrent(None) == 0
            tms.pause()
            assert naps and naps.pop()
            assert cuda.cuCtxSetCurrent(context) == 0
            assert cuda.cuStreamQuery(stream) == 0
            assert cuda.cuCtxSynchronize() == 0
            tms.resume()
            assert byte_at(address, 0) == byte_at(address, SIZE - 1) == 9
        assert cuda.cuMemFree_v2(address) == 0
        assert cuda.cuCtxSynchronize() == 0
        """
    )


def test_freed_in_a_context_of_the_programs_own() -> None:
    in_driver_program(
        """
        create()
        address = allocate()
        stream = busy(address)
        assert cuda.cuMemFree_v2(address) == 0
        assert naps
        assert cuda.cuStreamQuery(stream) == 0
        assert cuda.cuCtxSynchronize() == 0
        """
    )


@pytest.fixture
def across() -> Any:
    """A stream of device 1, and memory there for a copy of device 0's."""
    with torch.cuda.device(1):
        target = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
    torch.ones(1, device="cuda:0").to("cuda:1")  # PyTorch enables peer access
    torch.cuda.synchronize(1)
    return stream, target


def start_copy(way: str, across: Any, source: ctypes.c_void_p) -> None:
    """Copies the source on device 0 in half a second, by device 1's stream."""
    stream, target = across
    size, to = ctypes.c_size_t(SIZE), ctypes.c_void_p(target.data_ptr())
    raw = ctypes.c_void_p(stream.cuda_stream)
    with torch.cuda.device(1), torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        if way == "cudaMemcpyAsync":
            assert cuda.cudaMemcpyAsync(to, source, size, 4, raw) == 0
        else:
            assert cuda.cudaMemcpyPeerAsync(to, 1, source, 0, size, raw) == 0
    assert torch.cuda.current_device() == 0


@pytest.mark.several_gpus
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
@pytest.mark.parametrize("way", ["cudaMemcpyAsync", "cudaMemcpyPeerAsync"])
@pytest.mark.parametrize("goes", ["by a pause", "by a free"])
def test_copy_by_another_devices_stream(goes: str, way: str, across: Any, tag: str) -> None:
    """Before the memory goes the copy is waited for, whichever device is current."""
    stream, target = across
    for value in range(1, 5):
        source = in_region(tag)
        assert cuda.cudaMemset(source, value, ctypes.c_size_t(SIZE)) == 0
        torch.cuda.synchronize(0)
        start_copy(way, across, source)
        running = not stream.query()
        with torch.cuda.device(value % 2):
            if goes == "by a pause":
                tms.pause(tag)
            else:
                assert cuda.cudaFree(source) == 0
        done = stream.query()
        assert running
        assert done
        stream.synchronize()
        assert holds(target, value)
        if goes == "by a pause":
            tms.resume(tag)
            assert byte_at(source, SIZE - 1) == value
            assert cuda.cudaFree(source) == 0
