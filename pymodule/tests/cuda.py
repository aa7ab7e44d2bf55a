"""The CUDA runtime of this process by ctypes, as a program linked with it sees it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_CUDART = os.environ.get("TESTS_CUDART", "libcudart.so.13")


class _Linked(ctypes.CDLL):
    """The process's own symbols, by the version that a program linked with the runtime names.

    Without one, libtms.so takes the caller for one of CUDA 13, whose runtime may be PyTorch's own.
    """

    def __getitem__(self, name: Any) -> Any:
        find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(
            ("dlvsym", ctypes.CDLL(None))
        )
        return self._FuncPtr(find(None, name.encode(), _CUDART.encode()))


ctypes.CDLL(_CUDART, ctypes.RTLD_GLOBAL)
# The process's own symbols: cudaMalloc is the interposed one.
_runtime = _Linked(None) if "TESTS_CUDART" in os.environ else ctypes.CDLL(None)
_driver = ctypes.CDLL("libcuda.so.1")

_runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
_runtime.cudaFree.argtypes = [ctypes.c_void_p]
_runtime.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_driver.cudasim_stat.restype = ctypes.c_uint64
_driver.cudasim_stat.argtypes = [ctypes.c_char_p]
_driver.cudasim_fail.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
_driver.cudasim_fail.restype = None
_driver.cudasim_failures_fired.restype = ctypes.c_uint64

MiB = 1 << 20


class CudaError(Exception):
    """A call returned something other than cudaSuccess."""


def check(code: int) -> None:
    if code:
        raise CudaError(code)


def malloc(size: int) -> int:
    """Address of `size` new bytes."""
    pointer = ctypes.c_void_p()
    check(_runtime.cudaMalloc(ctypes.byref(pointer), size))
    assert pointer.value
    return pointer.value


def free(pointer: int) -> None:
    check(_runtime.cudaFree(pointer))


def write(pointer: int, contents: bytes) -> None:
    check(_runtime.cudaMemcpy(pointer, contents, len(contents), 1))


def read(pointer: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    check(_runtime.cudaMemcpy(buffer, pointer, size, 2))
    return buffer.raw


def free_memory() -> int:
    """Free bytes of the current device, from cudaMemGetInfo."""
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    check(_runtime.cudaMemGetInfo(ctypes.byref(free_bytes), ctypes.byref(total)))
    return free_bytes.value


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


def ipc_handle(pointer: int) -> bytes:
    """The handle with which another process opens the memory."""
    handle = _Handle()
    check(_runtime.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(pointer)))
    return bytes(handle)


def ipc_open(handle: bytes) -> int:
    """Address of another process's memory."""
    pointer = ctypes.c_void_p()
    check(_runtime.cudaIpcOpenMemHandle(ctypes.byref(pointer), _Handle.from_buffer_copy(handle), 1))
    assert pointer.value
    return pointer.value


def set_device(device: int) -> None:
    check(_runtime.cudaSetDevice(device))


def calls(function: str) -> int:
    """How often the simulated driver's `function` was called."""
    return int(_driver.cudasim_stat(b"calls:" + function.encode()))


def fail(function: str, nth: int, code: int) -> None:
    """Makes the nth call from now of the simulated driver's `function` return `code`, once."""
    _driver.cudasim_fail(function.encode(), nth, code)


def failures() -> int:
    """How many of the requested failures have happened."""
    return int(_driver.cudasim_failures_fired())


def forget_failures() -> None:
    """Drops the failures that have not happened."""
    _driver.cudasim_clear_failures()


class Capture:
    """Captures a stream during the body."""

    def __enter__(self) -> None:
        self._stream = ctypes.c_void_p()
        check(_runtime.cudaStreamCreate(ctypes.byref(self._stream)))
        check(_runtime.cudaStreamBeginCapture(self._stream, 2))  # cudaStreamCaptureModeRelaxed

    def __exit__(self, *exception: object) -> None:
        graph = ctypes.c_void_p()
        check(_runtime.cudaStreamEndCapture(self._stream, ctypes.byref(graph)))
        check(_runtime.cudaGraphDestroy(graph))
        check(_runtime.cudaStreamDestroy(self._stream))
