"""Two processes: a child reads what its parent writes to memory that they share."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import steps
import torch
import torch.multiprocessing

COUNT = 32 << 20  # numbers of 8 bytes
EACH = 4096  # of which a step changes one


class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


class Raw:
    """Memory at an address as a tensor."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (COUNT,),
            "typestr": "<i8",
            "data": (address, False),
            "version": 3,
        }


def call(name: str, *arguments: Any) -> None:
    """Calls a function of a preloaded library, or else of the libcudart that torch has loaded."""
    library = ctypes.CDLL(None)
    if not hasattr(library, name):
        maps = Path("/proc/self/maps").read_text().splitlines()
        library = ctypes.CDLL(next(m.split()[-1] for m in maps if "/libcudart.so" in m))
    code = getattr(library, name)(*arguments)
    if code != 0:
        raise SystemExit(f"{name}: {code}")


def allocated() -> tuple[torch.Tensor, bytes]:
    """A tensor in an allocation of its own, and CUDA's handle of that."""
    pointer, handle = ctypes.c_void_p(), Handle()
    call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(8 * COUNT))
    call("cudaIpcGetMemHandle", ctypes.byref(handle), pointer)
    return torch.as_tensor(Raw(pointer.value or 0), device="cuda"), bytes(handle)


def opened(handle: bytes) -> torch.Tensor:
    pointer = ctypes.c_void_p()
    call("cudaIpcOpenMemHandle", ctypes.byref(pointer), Handle.from_buffer_copy(handle), 1)
    return torch.as_tensor(Raw(pointer.value or 0), device="cuda")


def read(pipe: Any) -> None:
    torch.zeros(1, device="cuda")
    sent = pipe.recv()
    shared = opened(sent) if isinstance(sent, bytes) else sent
    own = torch.arange(COUNT, device="cuda")
    while (number := pipe.recv()) is not None:
        own += number
        pipe.send((int((shared * own).sum()), int(own.sum())))


def main() -> None:
    arguments = steps.parser(__doc__)
    arguments.add_argument("--by", choices=["torch", "handle"], default="torch")
    options = arguments.parse_args()
    context = torch.multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    child = context.Process(target=read, args=(other,), daemon=True)
    child.start()
    torch.zeros(1, device="cuda")
    if options.by == "torch":
        shared = torch.empty(COUNT, dtype=torch.int64, device="cuda")
        pipe.send(shared)
    else:
        shared, handle = allocated()
        pipe.send(handle)
    torch.arange(COUNT, out=shared)
    run = steps.Run(options.steps)
    for number in run.steps():
        shared[number % EACH :: EACH] += number
        torch.cuda.synchronize()
        pipe.send(number)
        run.note(*pipe.recv())
        if number == 0:
            run.ready(16 * COUNT)
    pipe.send(None)
    child.join()
    if child.exitcode != 0:
        raise SystemExit(f"the child ended with {child.exitcode}")
    run.note(int(shared.sum()))
    run.end()


if __name__ == "__main__":
    main()
