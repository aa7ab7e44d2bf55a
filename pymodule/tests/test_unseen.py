"""Allocations in a region that never reach libtms.so, because the program bypasses the preload."""

from __future__ import annotations

import re

import children
import pytest

PAST = """
import ctypes, os, warnings
import cuda, tms
handle = ctypes.CDLL("libcudart.so.13")  # as dlsym(handle, ...): not the process's own cudaMalloc
def past(size):
    pointer = ctypes.c_void_p()
    assert handle.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer.value
cuda.free_memory()  # makes the context
warnings.simplefilter("always")
"""


def warnings_of(code: str, **variables: str) -> str:
    result = children.run(PAST + code, **variables)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_said_once() -> None:
    said = warnings_of(
        """
with tms.region("weights"):
    past(64 << 20)
for _ in range(8):
    with tms.region("weights"):
        past(16 << 20)
print(os.getpid())
"""
    )
    assert said.count("RuntimeWarning") == 1
    assert re.search(
        r"64 MiB of device memory were taken while in tms.region\('weights'\), but no allocation "
        r"has come to libtms.so: .* `tms doctor --pid \d+`, or `tms doctor PROGRAM`",
        said,
    )


def test_said_of_a_later_region() -> None:
    said = warnings_of(
        """
for _ in range(3):
    with tms.region("empty"):
        pass
with tms.region("weights"):
    past(64 << 20)
"""
    )
    assert "tms.region('weights')" in said


@pytest.mark.parametrize(
    "code",
    [
        'with tms.region("empty"): pass',
        'past(64 << 20)\nwith tms.region("empty"): pass\npast(64 << 20)',
        'with tms.region("seen"): cuda.malloc(64 << 20)',
        'with tms.region("seen"): cuda.malloc(4 << 20); past(64 << 20)',
        "with tms.disable(): past(64 << 20)",
        "with tms.exclude(), tms.region(): past(64 << 20)",
        "with tms.region(): past(1 << 20)  # as CUDA takes for a kernel",
        "with tms.region(): p = past(64 << 20); handle.cudaFree(ctypes.c_void_p(p))",
    ],
)
def test_not_said(code: str) -> None:
    assert warnings_of(code) == ""


def test_not_said_where_libraries_are_excluded() -> None:
    code = 'with tms.region("weights"): past(64 << 20)'
    assert warnings_of(code, TMS_EXCLUDE="libsomething.so") == ""
    assert "RuntimeWarning" in warnings_of(code)


def test_makes_no_context_and_loads_nothing() -> None:
    out = children.output(
        """
        import ctypes, os, tms
        with tms.region("weights"):
            pass
        print("libcuda" in open("/proc/self/maps").read())
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        with tms.region("weights"):
            pass
        context = ctypes.c_void_p()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        print(context.value)
        """
    )
    assert out == "False\nNone\n"
