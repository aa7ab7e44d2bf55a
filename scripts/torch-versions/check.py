"""Whether the PyTorch that is installed has what pymodule uses of it. Needs no GPU.

Prints one line; exits with 1 after the first thing that is missing or has another signature. Run by
scripts/torch-versions.sh, with libtms.so preloaded.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import tms
import torch
from tms import _pool, _private, _region_pools
from tms._library import library_path, load

INT = r"[\w.]*[Ii]nt\w*(?: \| [\w.]*SupportsIndex)?"
"""int, typing.SupportsInt, or both of the latter and typing.SupportsIndex, as 2.14 and 2.15 say."""

POOL = rf"\(arg0: {INT}, arg1: \w+\[{INT}, {INT}\]\) -> None"
ADDRESSES = rf"\(arg0: {INT}, arg1: {INT}\) -> "
ADDRESS = rf"\(self: [\w.]*, arg0: {INT}\) -> None"


def takes(function: object, signature: str) -> None:
    """Of a function of C++, whose first line of documentation is its signature."""
    first = (function.__doc__ or "").strip().splitlines()[0]
    assert re.search(signature, first), f"{first} does not match {signature}"


def accepts(function: object, *arguments: object, **keywords: object) -> None:
    """Of a function of Python."""
    inspect.signature(function).bind(*arguments, **keywords)  # type: ignore[arg-type]


def private_names() -> str:
    """Returns how pools are kept apart."""
    functions = _region_pools.Functions(torch)
    for function in (functions.begin, functions.end, functions.release):
        takes(function, POOL)
    takes(_private.private(torch, "_C._cuda_customAllocator"), ADDRESSES)
    address = load().address_of("tms_torch_pool_init")
    made = torch._C._cuda_customAllocator(address, address)
    for name in _pool._SETTERS:
        takes(_private.setter(torch, made, name), ADDRESS)
    accepts(_private.private(torch, "cuda.memory._CUDAAllocator"), made)
    accepts(torch.cuda.memory._record_memory_history, max_entries=1, stacks="python")
    accepts(torch.cuda.memory._snapshot)
    _private.set_settings(torch, "expandable_segments:False")
    # What a snapshot says is seen only on a GPU; the names are in the binary.
    text = (Path(torch.__file__).parent / "lib" / "libtorch_python.so").read_bytes()
    for field in (
        "segment_pool_id",
        "active_allocated",
        "total_size",
        "active_size",
        "is_expandable",
        "allocator_settings",
    ):
        assert b"\0" + field.encode() + b"\0" in text, f"no {field} in snapshots"
    return "per thread" if "Thread" in functions.begin.__name__ else "for all threads"


def public_names() -> None:
    cuda = torch.cuda
    accepts(cuda.MemPool, None)
    assert "id" in dir(cuda.MemPool)
    accepts(cuda.graph, None, pool=None, stream=None, capture_error_mode="global")
    for name in [
        "current_device",
        "device_count",
        "empty_cache",
        "get_allocator_backend",
        "init",
        "is_available",
        "is_current_stream_capturing",
        "is_initialized",
        "mem_get_info",
        "memory_snapshot",
    ]:
        accepts(getattr(cuda, name))
    accepts(cuda.memory.change_current_allocator, None)
    accepts(cuda.memory.CUDAPluggableAllocator, "path", "malloc", "free")
    accepts(torch.distributed.get_backend_config)
    assert callable(torch.frombuffer)
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def what_runs() -> None:
    """Without a GPU: regions of a CPU program, and the two ways to hand PyTorch an allocator."""
    with tms.region("weights", backup="host"), tms.disable():
        assert torch.zeros(4).sum().item() == 0
    tms.empty_cache()
    assert tms.pause() == tms.resume() == 0
    plugged = torch.cuda.memory.CUDAPluggableAllocator(
        library_path(), "tms_torch_malloc", "tms_torch_free"
    )
    assert plugged.allocator() is not None
    assert torch.cuda.get_allocator_backend() == "native"
    tms.use_allocator("caching")
    assert torch.cuda.get_allocator_backend() == "pluggable"
    try:
        tms.use_allocator("caching")
        raise AssertionError("PyTorch took another allocator")
    except tms.NotSupportedError:
        pass


def main() -> int:
    try:
        pools = private_names()
        public_names()
        what_runs()
    except (AssertionError, AttributeError, TypeError, tms.TmsError) as error:
        print(f"torch {torch.__version__}: {type(error).__name__}: {error}")
        return 1
    print(f"torch {torch.__version__}: all there, pools {pools}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
