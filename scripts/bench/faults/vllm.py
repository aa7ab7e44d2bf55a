"""host.c's program for the allocator of vLLM's sleep mode: its compiled module and its cumem.py.

    python3 vllm.py WHEEL count FUNCTION...
    python3 vllm.py WHEEL fail PHASE FUNCTION NTH CODE

WHEEL is a folder with these files of vLLM's wheel. Everything else that they import is a stand-in:
PyTorch has no driver call of its own here but the pinned memory of torch.empty, which it keeps for
the next time, and the wait for the device.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PIECES = [(4 << 20, True), (2 << 20, True), (2 << 20, True), (6 << 20, False), (2 << 20, False)]
PINNED: dict[int, list[int]] = {}  # PyTorch keeps pinned memory

driver = ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
driver.cudasim_stat.restype = driver.cudasim_failures_fired.restype = ctypes.c_uint64
runtime.cudaHostAlloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]


def check(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}")


class Tensor:
    """Pinned bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        free = PINNED.setdefault(size, [])
        if not free:
            pointer = ctypes.c_void_p()
            check(runtime.cudaHostAlloc(ctypes.byref(pointer), size, 0))
            free.append(pointer.value or 0)
        self.at = free.pop()

    def __del__(self) -> None:
        if hasattr(self, "at"):
            PINNED[self.size].append(self.at)

    def data_ptr(self) -> int:
        return self.at

    def numel(self) -> int:
        return self.size

    def element_size(self) -> int:
        return 1


class Pool:
    id = (0, 0)

    def __init__(self, allocator: Any) -> None:
        pass

    def snapshot(self) -> list[Any]:
        return []


class Pluggable:
    """Calls the module's functions, as PyTorch's allocator does."""

    _allocator = None

    def __init__(self, path: str, malloc: str, free: str) -> None:
        library = ctypes.CDLL(path)
        self.malloc, self.free = getattr(library, malloc), getattr(library, free)
        self.malloc.restype = ctypes.c_void_p
        self.malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]


@contextlib.contextmanager
def use_pool(pool: Any) -> Iterator[None]:
    yield


def stand_in(name: str, folder: Path | None = None, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    if folder:
        module.__path__ = [str(folder)]
    vars(module).update(names)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def load(wheel: Path) -> Any:
    """vllm.device_allocator.cumem, over the stand-ins."""
    module = wheel / "vllm" / "cumem_allocator.abi3.so"
    accelerator = types.SimpleNamespace(
        synchronize=lambda device=0: check(runtime.cudaDeviceSynchronize()),
        empty_cache=lambda: None,
    )
    torch = stand_in("torch", uint8=None, Tensor=Tensor, accelerator=accelerator)
    torch.empty = lambda size, **_: Tensor(size)
    stand_in("torch.cuda")
    stand_in(
        "torch.cuda.memory", CUDAPluggableAllocator=Pluggable, MemPool=Pool, use_mem_pool=use_pool
    )
    stand_in("vllm", wheel / "vllm")
    stand_in("vllm.envs")
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in("vllm.platforms", current_platform=types.SimpleNamespace(is_rocm=lambda: False))
    stand_in("vllm.utils", wheel)

    def loaded(name: str) -> str | None:
        maps = Path("/proc/self/maps").read_text().splitlines()
        return next((line.split()[-1] for line in maps if name in line), None)

    stand_in("vllm.utils.system_utils", find_loaded_library=loaded)
    stand_in("vllm.utils.torch_utils", PIN_MEMORY=True)
    stand_in("vllm.distributed", wheel / "vllm" / "distributed")
    stand_in(
        "vllm.distributed.device_communicators",
        wheel / "vllm" / "distributed" / "device_communicators",
    )
    spec = importlib.util.spec_from_file_location("vllm.cumem_allocator", module)
    assert spec and spec.loader
    sys.modules["vllm.cumem_allocator"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["vllm.cumem_allocator"])
    return importlib.import_module("vllm.device_allocator.cumem")


def pattern(piece: int) -> bytes:
    size = PIECES[piece][0]
    block = bytes((i * 31 + (i >> 9) + piece * 7 + 1) & 255 for i in range(1 << 17))
    return (block * (size // len(block) + 1))[:size]


def read(at: int, size: int) -> bytes | None:
    buffer = ctypes.create_string_buffer(size)
    failed = driver.cuMemcpyDtoH_v2(buffer, ctypes.c_uint64(at), ctypes.c_size_t(size))
    return None if failed else buffer.raw


def write(at: int, data: bytes) -> bool:
    return not driver.cuMemcpyHtoD_v2(ctypes.c_uint64(at), data, ctypes.c_size_t(len(data)))


def used(event: str) -> None:
    print(event, driver.cudasim_stat(b"used:0"))


def main() -> None:
    wheel, what, arguments = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    counted = arguments if what == "count" else []
    phase, function, nth, code = arguments if what == "fail" else ("", "", "0", "0")
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    done = False
    atexit.register(lambda: done or print("ended", driver.cudasim_failures_fired()))
    check(runtime.cudaFree(None))
    cumem = load(wheel)
    allocator = cumem.CuMemAllocator.get_instance()
    pieces = []
    for i, (size, kept) in enumerate(PIECES):
        with allocator.use_memory_pool("weights" if kept else "kv_cache"):
            pluggable = allocator.allocator_and_pools["weights" if kept else "kv_cache"][-1][1]
            at = pluggable.malloc(size, 0, None)
        assert at and write(at, pattern(i))
        pieces.append((at, pluggable))
    used("active")

    def call(name: str, pause_or_resume: Any) -> None:
        before = [driver.cudasim_stat(b"calls:" + f.encode()) for f in counted]
        if phase == name:
            driver.cudasim_fail(function.encode(), int(nth), int(code))
        failed = attempt(pause_or_resume)
        if phase == name:
            print("fired", driver.cudasim_failures_fired())
        driver.cudasim_clear_failures()
        for f, calls in zip(counted, before):
            if driver.cudasim_stat(b"calls:" + f.encode()) > calls:
                print("calls", name, f, driver.cudasim_stat(b"calls:" + f.encode()) - calls)
        print(name, int(bool(failed)), failed)
        if failed:
            ends = [(at, at + size - 1) for (at, _), (size, _) in zip(pieces, PIECES)]
            there = sum(all(read(end, 1) is not None for end in both) for both in ends)
            print("mapped", there, "of", len(PIECES))
            print(f"{name}-again", int(bool(attempt(pause_or_resume))))
        used("paused" if name == "pause" else "resumed")

    call("pause", lambda: allocator.sleep(("weights",)))
    call("resume", lambda: allocator.wake_up(None))
    wrong = 0
    for i, ((at, _), (size, kept)) in enumerate(zip(pieces, PIECES)):
        right = kept or write(at, pattern(i))
        wrong += not (right and read(at, size) == pattern(i))
    print("wrong", wrong, "of", len(PIECES))
    for (at, pluggable), (size, _) in zip(pieces, PIECES):
        pluggable.free(at, size, 0, None)
    print("frees-failed 0")
    used("freed")
    done = True
    print("done")


def attempt(call: Any) -> str:
    """What it raised, in one line."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return ""


if __name__ == "__main__":
    main()
