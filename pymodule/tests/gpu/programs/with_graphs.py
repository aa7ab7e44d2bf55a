"""Graphs that are made of nodes, instantiated, updated and launched, each call after a sleep.

So a pause from outside mostly comes between two calls, and the first call after it may be any of
these. Each step also asks the driver about the memory, as Triton's launcher and communication
libraries do.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import steps
import torch

# Numbers of 4 bytes: the driver takes 16 MiB at a time for graphs, little beside these tensors.
COUNT = 32 << 20
MEMORY_TYPE, DEVICE_POINTER, RANGE_SIZE = 2, 3, 12

driver = ctypes.CDLL("libcuda.so.1")


class Memset(ctypes.Structure):
    _fields_ = [
        ("target", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


class Copy(ctypes.Structure):  # CUDA_MEMCPY3D
    _fields_ = [
        ("from_x", c_size_t),
        ("from_y", c_size_t),
        ("from_z", c_size_t),
        ("from_lod", c_size_t),
        ("from_type", c_int),
        ("from_host", c_void_p),
        ("from_device", c_uint64),
        ("from_array", c_void_p),
        ("reserved", c_void_p),
        ("from_pitch", c_size_t),
        ("from_height", c_size_t),
        ("to_x", c_size_t),
        ("to_y", c_size_t),
        ("to_z", c_size_t),
        ("to_lod", c_size_t),
        ("to_type", c_int),
        ("to_host", c_void_p),
        ("to_device", c_uint64),
        ("to_array", c_void_p),
        ("reserved_too", c_void_p),
        ("to_pitch", c_size_t),
        ("to_height", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    ]


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver, a moment later."""
    time.sleep(0.005)
    code = getattr(driver, name)(*arguments)
    assert code == 0, (name, code)


def copy(to: int, of: int) -> Copy:
    size = 4 * COUNT
    return Copy(
        from_type=2,
        from_device=of,
        from_pitch=size,
        from_height=1,
        to_type=2,
        to_device=to,
        to_pitch=size,
        to_height=1,
        width=size,
        height=1,
        depth=1,
    )


def ask(address: int) -> None:
    """The answers are those of active memory."""
    pointer, kind, size = c_uint64(), c_uint(), c_size_t()
    call("cuPointerGetAttribute", byref(pointer), DEVICE_POINTER, c_uint64(address))
    assert pointer.value == address
    attributes = (c_int * 2)(MEMORY_TYPE, RANGE_SIZE)
    places = (c_void_p * 2)(ctypes.addressof(kind), ctypes.addressof(size))
    call("cuPointerGetAttributes", 2, attributes, places, c_uint64(address))
    assert (kind.value, size.value >= 4 * COUNT) == (2, True)
    call("cuMemGetAddressRange_v2", byref(pointer), byref(size), c_uint64(address))


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = torch.arange(COUNT, dtype=torch.int32, device="cuda")
    other = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    third = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    context, stream = c_void_p(), c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuCtxGetCurrent", byref(context))
    run = steps.Run(options.steps)
    for number in run.steps():
        graph, node, exec_ = c_void_p(), c_void_p(), c_void_p()
        call("cuGraphCreate", byref(graph), 0)
        fill = Memset(third.data_ptr(), 0, number + 1, 4, COUNT, 1)
        call("cuGraphAddMemsetNode", byref(node), graph, None, c_size_t(0), byref(fill), context)
        first = c_void_p(node.value)
        one = copy(other.data_ptr(), values.data_ptr())
        call(
            "cuGraphAddMemcpyNode",
            byref(node),
            graph,
            byref(first),
            c_size_t(1),
            byref(one),
            context,
        )
        second = c_void_p(node.value)
        call("cuGraphInstantiateWithFlags", byref(exec_), graph, ctypes.c_ulonglong(0))
        call("cuGraphLaunch", exec_, stream)
        fill.value = number + 2
        call("cuGraphExecMemsetNodeSetParams", exec_, first, byref(fill), context)
        one = copy(values.data_ptr(), third.data_ptr())
        call("cuGraphExecMemcpyNodeSetParams", exec_, second, byref(one), context)
        ask(values.data_ptr())
        call("cuGraphLaunch", exec_, stream)
        torch.cuda.synchronize()
        values += other * 3
        call("cuGraphExecDestroy", exec_)
        call("cuGraphDestroy", graph)
        run.note(int(values.sum(dtype=torch.int64)))
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(values.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
