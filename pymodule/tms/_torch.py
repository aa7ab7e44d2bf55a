"""Tells PyTorch's caching allocator which of its segments belong to which region.

The allocator splits segments that it once got from cudaMalloc into tensors, and keeps the
segments of freed tensors for later ones. Left alone it would put a region's tensors into ordinary
segments, and ordinary tensors into a region's. A `torch.cuda.MemPool` keeps segments apart. How
the allocator treats pools (c10/cuda/CUDACachingAllocator.cpp) decides the rest:

- A list per device holds (pool, filter) pairs; an allocation goes to a pool whose filter accepts
  it. Versions differ in which of several that is (the first begun, later the last), so at most one
  of ours is on the list for a thread: an inner region takes the outer one's pool off the list.
- A pool can be on the list once. So two threads in the same region at the same time get a pool
  each; a pool that nobody uses serves the next thread.
- A pool exists per device, under one id, as long as its use count there is not 0. The MemPool
  object counts on the device on which it was made; on the others the first use is kept. At 0,
  torch.cuda.empty_cache() releases the free segments in the pool, which can no longer be used.
- With expandable_segments:True a pool without an allocator of its own has segments that PyTorch
  maps chunk by chunk (`try_allocate_expandable_block`). PyTorch destroys the pool when as many
  stretches have been unmapped as were mapped, whatever is left in it, so such a pool's use count
  goes to 0 only when nothing in it is in use.
- A graph capture has its own entry on the list. It is left alone, because blocks freed during a
  capture must not go to anyone but that graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Callable, Optional

from ._errors import NotSupportedError
from ._library import load
from ._private import private, segments, set_settings, settings

PoolKey = Optional[tuple[object, ...]]
"""What a region's memory has in common, its tag first; None: memory that is not pausable."""

_Route = Callable[[int, tuple[int, int]], None]


@dataclasses.dataclass(eq=False)
class Route:
    """What serves a thread's CUDA tensors from `enter` to `leave`, unless another came since."""

    pool: _Pool | None
    """None: PyTorch's default pool."""


def enter(key: PoolKey) -> Route | None:
    """Serves this thread's CUDA tensors from a pool of `key` and from no other, until `leave`.

    Returns None where there is nothing to do: there is no PyTorch, or a graph's pool serves, or
    what `tms.exclude` has chosen.

    Raises:
        NotSupportedError: PyTorch is set up so that its memory can't be paused.
    """
    torch, library = _torch_with_cuda(), load()
    if torch is None or _serves_all or torch.cuda.is_current_stream_capturing() or library.excluded:
        return None
    if not library.interposes:
        refuse_expandable_segments()
    pools = _pools_of(torch)
    if not _thread.routes:  # outside all regions, the default pool holds what the thread's own do
        _thread.plain_by_default = not (library.interposes and library.active)
    ordinary = key is None and _thread.plain_by_default
    return _serve_from(None if ordinary else pools.take(key))


def enter_own(key: tuple[object, ...], allocator: object) -> Route:
    """Serves this thread's CUDA tensors from a pool with an allocator of its own, until `leave`.

    Args:
        key: what the memory has in common; the same for the same allocator only.
        allocator: what `torch.cuda.MemPool` takes as one.

    Raises:
        NotSupportedError: there is no CUDA device for PyTorch, or no memory pools.
    """
    torch = _torch_with_cuda()
    if torch is None:
        raise NotSupportedError("PyTorch has no CUDA device here, so there is no memory to serve.")
    if not load().interposes:
        refuse_expandable_segments()
    return _serve_from(_pools_of(torch).take(key, allocator))


def set_aside() -> Route | None:
    """Takes the pool of the region that this thread is in off PyTorch's list, until `leave`."""
    return _serve_from(None) if _thread.routes else None


def leave(route: Route | None) -> None:
    """Undoes `enter`, `enter_own` or `set_aside`, in any order, on the same thread."""
    if route is None:
        return
    routes = _thread.routes
    served = routes[-1] is route
    if served and route.pool:
        route.pool.end()
    routes.remove(route)
    if served and routes and routes[-1].pool:
        routes[-1].pool.begin()
    if route.pool:
        _give_back(route.pool)


def _serve_from(pool: _Pool | None) -> Route:
    outer = _thread.routes[-1].pool if _thread.routes else None
    if outer:
        outer.end()
    try:
        if pool:
            pool.begin()
    except BaseException:
        if outer:
            outer.begin()
        if pool:
            _give_back(pool)
        raise
    route = Route(pool)
    _thread.routes.append(route)
    return route


def _give_back(pool: _Pool) -> None:
    if _pools is not None and pool not in _entered_pools():
        _pools.give_back(pool)


def _entered_pools() -> list[_Pool]:
    return [route.pool for route in _thread.routes if route.pool]


_serves_all = False


def serve_all() -> None:
    """Says that PyTorch's allocator is one of ours, which looks at regions by itself."""
    global _serves_all
    _serves_all = True


def region_pools() -> _Pools | None:
    """The pools of all regions; None where there is no PyTorch that uses CUDA."""
    torch = _torch_with_cuda()
    return None if torch is None else _pools_of(torch)


def in_use() -> bool:
    """Whether the program has PyTorch, and PyTorch a CUDA device."""
    return _torch_with_cuda() is not None


def routed() -> bool:
    """Whether this thread is in a region whose pool serves it."""
    return bool(_thread.routes)


def bytes_of_regions() -> int:
    """Device memory that the pools of pausable regions hold, in use or cached."""
    if _pools is None:
        return 0
    ids = {pool.memory.id for key, pools in _pools.known().items() if key for pool in pools}
    return sum(segment.total for segment in segments(sys.modules["torch"]) if segment.pool in ids)


def dispose(pool: _Pool) -> None:
    """Gives free memory in `pool` back to the device, and the rest once it is freed.

    torch.cuda.empty_cache() does so from here on.
    """
    if _pools is not None and pool not in _entered_pools():
        _pools.drop(pool)
        sys.modules["torch"].cuda.empty_cache()


def allocate_with(allocator: object) -> None:
    """Makes the pools of regions get their memory from a `torch.cuda.CUDAPluggableAllocator`.

    For processes in which nothing is interposed; before the first region.
    """
    global _allocator
    _allocator = allocator


def release_cache() -> bool:
    """Gives memory that PyTorch only caches back to the devices, that of regions included.

    False where there is no PyTorch that uses CUDA.
    """
    if not works():
        return False
    if _pools is not None:
        _pools.retire_idle()
    sys.modules["torch"].cuda.empty_cache()
    return True


def works() -> bool:
    """Whether PyTorch has used a CUDA device in this process."""
    torch = _torch_with_cuda()
    return torch is not None and bool(torch.cuda.is_initialized())


def synchronize(devices: set[int]) -> None:
    """Waits for all work that devices have been given so far. (torch.cuda.synchronize)"""
    for device in sorted(devices):
        sys.modules["torch"].cuda.synchronize(device)


def _torch_with_cuda() -> Any:
    """The torch module if the program has imported it and it has a CUDA device, else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    available = getattr(cuda, "is_available", None)  # absent while torch is being imported
    return sys.modules["torch"] if available is not None and available() else None


_gevent: Any = sys.modules.get("gevent.monkey")
thread_local: Any = _gevent.get_original("threading", "local") if _gevent else threading.local
"""One for each thread of the operating system, as CUDA has; gevent's has one for each greenlet."""


class _Thread(thread_local):  # type: ignore[misc]
    """What serves the current thread, innermost last."""

    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.plain_by_default = True


_thread = _Thread()


class _Functions:
    """PyTorch's functions that put a pool on the list of a device and take it off again."""

    def __init__(self, torch: Any) -> None:
        per_thread = hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")
        begin, end = (
            ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool")
            if per_thread
            else ("_cuda_beginAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
        )
        self.begin: _Route = private(torch, f"_C.{begin}")
        self.end: _Route = private(torch, f"_C.{end}")
        self.release: _Route = private(torch, "_C._cuda_releasePool")
        if not per_thread:
            warnings.warn(
                f"PyTorch {torch.__version__} has no memory pools per thread: while a thread is "
                "in a region, the CUDA tensors of other threads go into its pool too. "
                "PyTorch 2.8 and later keep them apart.",
                RuntimeWarning,
                stacklevel=2,
            )


_allocator: object = None
"""What the pools of regions get their memory from; None: cudaMalloc."""


class _Pool:
    """A torch.cuda.MemPool, used on all devices.

    Args:
        memory: the MemPool, made on the current device.
    """

    def __init__(self, key: PoolKey, torch: Any, functions: _Functions, memory: Any) -> None:
        # Never destroyed: the destructor frees device memory and aborts the process if any thread
        # is in a region then, which can't be ruled out when the interpreter shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self.key = key
        self.memory = memory
        self.dropped = False
        self._id: tuple[int, int] = memory.id
        self._functions = functions
        self._devices = range(torch.cuda.device_count())
        self._counted_on = {torch.cuda.current_device()}

    def begin(self) -> None:
        """From here on this thread's allocations come from this pool, on every device."""
        for device in self._devices:
            self._functions.begin(device, self._id)

    def end(self) -> None:
        """Undoes `begin`."""
        for device in self._devices:
            self._functions.end(device, self._id)
            if device in self._counted_on:
                self._functions.release(device, self._id)
            self._counted_on.add(device)

    def retirable(self, in_use: set[tuple[int, int]]) -> bool:
        """Whether `retire` is safe; `in_use` is from `_expandable_in_use`."""
        return self._id not in in_use

    def retire(self) -> None:
        """Takes the use count to 0: free memory in the pool is ordinary cache from here on."""
        for device in self._counted_on:
            self._functions.release(device, self._id)


class _Pools:
    """The pools of all regions."""

    def __init__(self, torch: Any) -> None:
        _refuse_what_cannot_be_paused(torch)
        torch.cuda.init()
        self._torch = torch
        self._functions = _Functions(torch)
        self._lock = threading.Lock()
        self._idle: dict[PoolKey, list[_Pool]] = {}
        self._known: dict[PoolKey, list[_Pool]] = {}

    def take(self, key: PoolKey, allocator: object = None) -> _Pool:
        """A pool of `key` that no other thread is in; the thread's own if it has entered one."""
        for own in _entered_pools():
            if own.key == key:
                return own
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                return idle.pop()
            allocator = allocator or (_allocator if key is not None else None)
            make = self._torch.cuda.MemPool
            memory = make(allocator) if allocator else make()
            pool = _Pool(key, self._torch, self._functions, memory)
            self._known.setdefault(key, []).append(pool)
            return pool

    def give_back(self, pool: _Pool) -> None:
        """Lets other threads take `pool`."""
        with self._lock:
            if pool.dropped and pool.retirable(_expandable_in_use(self._torch)):
                pool.retire()
                return
            if pool.dropped:
                pool.dropped = False
                self._known.setdefault(pool.key, []).append(pool)
            self._idle.setdefault(pool.key, []).append(pool)

    def retire_idle(self) -> None:
        """Retires the pools that no thread is in; the next region gets a new pool."""
        in_use = _expandable_in_use(self._torch)
        with self._lock:
            for key, pools in self._idle.items():
                for pool in [pool for pool in pools if pool.retirable(in_use)]:
                    pool.retire()
                    pools.remove(pool)
                    self._known[key].remove(pool)

    def known(self) -> dict[PoolKey, list[_Pool]]:
        """The pools that are not retired, by key, the oldest first."""
        with self._lock:
            return {key: list(pools) for key, pools in self._known.items() if pools}

    def drop(self, pool: _Pool) -> None:
        """Retires `pool`, at once or when the thread in it leaves it."""
        with self._lock:
            if pool not in self._known.get(pool.key, ()):
                return  # retired meanwhile
            idle = self._idle.get(pool.key, [])
            if pool in idle and not pool.retirable(_expandable_in_use(self._torch)):
                return
            self._known[pool.key].remove(pool)
            pool.dropped = True
            if pool in idle:
                idle.remove(pool)
                pool.retire()

    def adopt(self, key: PoolKey, memory: Any) -> None:
        """Makes the caller's MemPool the one that serves regions of `key`."""
        pool = _Pool(key, self._torch, self._functions, memory)
        with self._lock:
            self._known.setdefault(key, []).append(pool)
            self._idle.setdefault(key, []).append(pool)


def _expandable_in_use(torch: Any) -> set[tuple[int, int]]:
    """The pools with expandable segments in which something is allocated."""
    return {segment.pool for segment in segments(torch) if segment.expandable and segment.active}


_pools: _Pools | None = None
_pools_lock = threading.Lock()


def _pools_of(torch: Any) -> _Pools:
    global _pools
    with _pools_lock:
        if _pools is None:
            _pools = _Pools(torch)
        return _pools


def refuse_expandable_segments() -> None:
    """Raises NotSupportedError where PyTorch maps its memory itself and nothing is interposed.

    Regions then use pools with an allocator of their own, where most versions of PyTorch refuse
    expandable segments (c10/cuda/CUDACachingAllocator.cpp, `alloc_block`).
    """
    if _without.depth:
        return
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = os.environ.get(variable, "")
        if _EXPANDABLE.search(text):
            raise NotSupportedError(
                f"{variable} is {text!r}: expandable_segments is not supported with hook_mode "
                "'torch', because then PyTorch maps its memory itself. Start the process with "
                "LD_PRELOAD and hook_mode 'preload', or without expandable_segments:True.",
            )


class _Without:
    """How many callers are in `without_expandable_segments`, and the settings before them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.before = ""


_without = _Without()


@contextlib.contextmanager
def without_expandable_segments(torch: Any) -> Iterator[None]:
    """PyTorch's expandable_segments setting is off in the body, for the whole process.

    What is mapped already stays as it is. PyTorch takes its settings as one text and resets those
    that it does not name, so all of them are restored afterwards.
    """
    with _without.lock:
        if not _without.depth:
            _without.before = settings(torch)
            if _EXPANDABLE.search(_without.before):
                set_settings(torch, _EXPANDABLE.sub(r"\1False", _without.before))
        _without.depth += 1
    try:
        yield
    finally:
        with _without.lock:
            _without.depth -= 1
            if not _without.depth and _EXPANDABLE.search(_without.before):
                set_settings(torch, _without.before)


_EXPANDABLE = re.compile(r"(expandable_segments\s*:\s*)(?:True|1)\b", re.IGNORECASE)


def _refuse_what_cannot_be_paused(torch: Any) -> None:
    if not hasattr(torch.cuda, "MemPool"):
        raise NotSupportedError(
            f"PyTorch {torch.__version__} has no memory pools to keep pausable and ordinary "
            "tensors apart. Use PyTorch 2.6 or later."
        )
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise NotSupportedError(
            f"PyTorch's CUDA allocator is {backend!r}, which has no memory pools to keep pausable "
            "and ordinary tensors apart. Use the native one: start the process without a "
            "'backend:' in PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, and without "
            "torch.cuda.memory.change_current_allocator()."
        )
