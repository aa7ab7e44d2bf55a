"""The caching allocator: segments of 2 MiB multiples, one tensor each."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Optional

import cuda as runtime

Id = Optional[tuple[int, int]]

listed: dict[int, list[tuple[Id, int]]] = defaultdict(list)
uses: dict[tuple[int, Id], int] = defaultdict(int)
cached: dict[tuple[int, Id], list[tuple[int, int]]] = defaultdict(list)
allocators: dict[Id, Any] = {}
reserved: dict[int, int] = defaultdict(int)
segments: dict[int, tuple[Id, int]] = {}
"""The pool and the size of each, by address."""
_device = 0
settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
_numbers = iter(range(1, 1 << 30))


class OutOfMemoryError(RuntimeError):
    pass


def current_device() -> int:
    return _device


def set_device(device: int) -> None:
    global _device
    _device = device
    runtime.set_device(device)


@contextlib.contextmanager
def on_device(device: int | None) -> Iterator[None]:
    before = _device
    set_device(before if device is None else device)
    try:
        yield
    finally:
        set_device(before)


def new_id() -> tuple[int, int]:
    return 0, next(_numbers)


class MemPool:
    def __init__(self, allocator: Any = None) -> None:
        self.id = new_id()
        self._device = _device
        uses[_device, self.id] = 1
        allocators[self.id] = allocator

    def use_count(self) -> int:
        return uses[self._device, self.id]

    def snapshot(self) -> list[dict[str, int]]:
        return [
            {"device": device, "total_size": size}
            for (device, identity), free in cached.items()
            if identity == self.id
            for _, size in free
        ]


def begin(device: int, identity: Id) -> None:
    assert (device, identity) not in uses or uses[device, identity] > 0, "use_count > 0"
    assert all(other != identity for other, _ in listed[device]), "already recording"
    uses[device, identity] += 1
    listed[device].append((identity, threading.get_ident()))


def end(device: int, identity: Id) -> None:
    (entry,) = [entry for entry in listed[device] if entry[0] == identity]
    listed[device].remove(entry)


def release(device: int, identity: Id) -> None:
    uses[device, identity] -= 1
    assert uses[device, identity] >= 0


@contextlib.contextmanager
def use_mem_pool(pool: MemPool) -> Iterator[None]:
    from . import memory

    device = _device
    memory._cuda_beginAllocateCurrentThreadToPool(device, pool.id)
    try:
        yield
    finally:
        memory._cuda_endAllocateToPool(device, pool.id)
        release(device, pool.id)


def serving(device: int) -> Id:
    mine = [identity for identity, thread in listed[device] if thread == threading.get_ident()]
    return mine[-1] if mine else None


def allocate(size: int) -> tuple[int, int, Id, int]:
    """(address, its segment's size, its pool, its device)."""
    device, pool = _device, serving(_device)
    size = max(1, -(-size >> 21)) << 21
    for segment in cached[device, pool]:
        if segment[1] == size:
            cached[device, pool].remove(segment)
            return segment[0], size, pool, device
    for attempt in (1, 2):
        try:
            address = _raw_allocate(size, device, pool)
            reserved[device] += size
            segments[address] = pool, size
            return address, size, pool, device
        except runtime.CudaError as error:
            if error.args != (2,):
                raise
            if attempt == 1 and not _release_available(size, device, pool):
                empty_cache()
    raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")


def _raw_allocate(size: int, device: int, pool: Id) -> int:
    allocator = allocators.get(pool)
    if allocator is None:
        return runtime.malloc(size)
    if "expandable_segments:True" in settings:
        raise RuntimeError("MemPool with an allocator, and expandable_segments is on")
    address = allocator.malloc(size, device, None)
    if not address:
        raise runtime.CudaError(2)
    return int(address)


def give_back(address: int, size: int, pool: Id, device: int) -> None:
    cached[device, pool].append((address, size))


def _release_available(size: int, device: int, pool: Id) -> bool:
    """As PyTorch's allocator does for one that finds no memory: free segments of the same pool."""
    found = re.search(r"max_split_size_mb:(\d+)", settings)
    if not found:
        return False
    split = int(found[1]) << 20
    large = sorted((part for part in cached[device, pool] if part[1] >= split), key=lambda p: p[1])
    least = max(size, split)
    fitting = [segment for segment in large if segment[1] >= least]
    released = 0
    for segment in fitting[:1] or large[::-1]:
        if released < least:
            cached[device, pool].remove(segment)
            _give_to_device(*segment, device, pool)
            released += segment[1]
    return released >= least


def _give_to_device(address: int, size: int, device: int, pool: Id) -> None:
    del segments[address]
    allocator = allocators.get(pool)
    if allocator is None:
        runtime.free(address)
    else:
        allocator.free(address, size, device, None)
    reserved[device] -= size


def empty_cache() -> None:
    """As of PyTorch 2.8: ordinary segments only while no pool is listed."""
    for (device, pool), free in cached.items():
        if (uses[device, pool] > 0 and pool) or (not pool and any(listed.values())):
            continue
        while free:
            _give_to_device(*free.pop(), device, pool)


def set_settings(text: str) -> None:
    global settings
    settings = text


def memory_snapshot() -> list[dict[str, object]]:
    """The part that tms asks for; no segment is expandable."""
    return [
        {
            "segment_pool_id": pool or (0, 0),
            "total_size": size,
            "active_size": size,
            "is_expandable": False,
        }
        for pool, size in segments.values()
    ]
