"""Memory in another process by the driver's functions, as any program can use them."""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from following import Follower
from simulator import HANGS

FILE_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class Importer(Follower):
    """A process without libtms.so that maps the memory at `address`, of the first device.

    Args:
        size: a multiple of the device's granularity.
    """

    def __init__(self, address: int, size: int) -> None:
        driver = ctypes.CDLL(None)  # as a program linked with the driver finds it
        handle, fd = c_uint64(), c_int()
        _check(driver.cuMemRetainAllocationHandle(byref(handle), c_void_p(address)))
        export = driver.cuMemExportToShareableHandle
        code = export(byref(fd), handle, FILE_DESCRIPTOR, c_uint64(0))
        _check(driver.cuMemRelease(handle))
        _check(code)
        unpreloaded = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, __file__, str(fd.value), str(size)]
        super().__init__(command, env=unpreloaded, pass_fds=[fd.value])
        os.close(fd.value)

    def reads(self) -> str:
        """The SHA-256 of the memory's contents, as the process sees them now."""
        return self.ask("read")

    def end(self) -> None:
        self.process.communicate(timeout=HANGS)
        assert self.process.returncode == 0


def made(size: int) -> tuple[int, int]:
    """The address of memory that the program itself makes, and a descriptor of it for others."""
    driver, handle, fd = ctypes.CDLL(None), c_uint64(), c_int()
    # CUmemAllocationProp: pinned, for a file descriptor, on the first device.
    properties = (c_int * 8)(1, FILE_DESCRIPTOR, 1, 0, 0, 0, 0, 0)
    _check(driver.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0)))
    _check(driver.cuMemExportToShareableHandle(byref(fd), handle, FILE_DESCRIPTOR, c_uint64(0)))
    driver.prctl(0x59616D61, ctypes.c_ulong(-1))  # PR_SET_PTRACER: any process may take it
    return _mapped(driver, handle, size), fd.value


def taken(pid: int, fd: int, size: int) -> int:
    """The address of memory that another process has made."""
    driver, handle = ctypes.CDLL(None), c_uint64()
    process = os.pidfd_open(pid)
    got = driver.syscall(438, process, fd, 0)  # pidfd_getfd
    if got < 0:  # Docker's filter of system calls refuses it
        got = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    importing = driver.cuMemImportFromShareableHandle
    _check(importing(byref(handle), c_void_p(got), FILE_DESCRIPTOR))
    os.close(got)
    os.close(process)
    return _mapped(driver, handle, size)


def _mapped(driver: ctypes.CDLL, handle: c_uint64, size: int) -> int:
    address, zero = c_uint64(), c_uint64(0)
    access = (c_int * 3)(1, 0, 3)  # device, its number, reading and writing
    reserve = ctypes.CDLL("libcuda.so.1").cuMemAddressReserve
    _check(reserve(byref(address), c_size_t(size), c_size_t(0), zero, zero))
    _check(driver.cuMemMap(address, c_size_t(size), c_size_t(0), handle, zero))
    _check(driver.cuMemSetAccess(address, c_size_t(size), access, c_size_t(1)))
    return address.value


def _check(code: int) -> None:
    assert code == 0, f"the driver's code is {code}"


def _import(fd: int, size: int) -> None:
    import hashlib

    driver = ctypes.CDLL("libcuda.so.1")
    context, handle = c_void_p(), c_uint64()
    _check(driver.cuInit(0))
    _check(driver.cuDevicePrimaryCtxRetain(byref(context), 0))
    _check(driver.cuCtxSetCurrent(context))
    _check(driver.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), FILE_DESCRIPTOR))
    address = c_uint64(_mapped(driver, handle, size))
    buffer = ctypes.create_string_buffer(size)
    for _ in sys.stdin:
        _check(driver.cuMemcpyDtoH_v2(buffer, address, c_size_t(size)))
        print(hashlib.sha256(buffer).hexdigest(), flush=True)


if __name__ == "__main__":
    _import(int(sys.argv[1]), int(sys.argv[2]))
