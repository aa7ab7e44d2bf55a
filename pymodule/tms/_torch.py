"""Tells PyTorch's caching allocator which of its segments belong to which region.

The allocator splits segments that it once got from cudaMalloc into tensors, and keeps the
segments of freed tensors for later ones. Left alone it would put a region's tensors into ordinary
segments, and ordinary tensors into a region's. A `torch.cuda.MemPool` keeps segments apart
(_region_pools.py). Beside that:

- An inner region takes the outer one's pool off PyTorch's list.
- What a pool keeps of freed tensors is paused with its tag. So a region that is entered while its
  tag is paused gets another pool, and so does a thread that pauses the tag that it is in.
- A graph capture has its own entry on the list. It is left alone, because blocks freed during a
  capture must not go to anyone but that graph.
- The program's own MemPools are left alone, too (_own_pools.py).

What is to serve a thread is decided by what it has entered, and brought about by `_settle`, which
can be interrupted anywhere, and made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from typing import Any

from . import _own_pools
from ._errors import NotSupportedError
from ._expandable import refuse_expandable_segments
from ._library import load
from ._private import blocks as blocks_of, segments
from ._region_pools import Pool, PoolKey, Pools


@dataclasses.dataclass(eq=False)
class Route:
    """The pool that serves a thread's CUDA tensors from `enter` to `leave`, or to the next."""

    pool: Pool | None = None
    """The pool, or None for PyTorch's default pool."""
    tag: bytes | None = None
    """The tag of the pool's memory, or None if the memory is not pausable."""
    allocator: object = None


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
    pools, mine = _pools_of(torch), _thread.served
    if not mine.routes:  # outside all regions, the default pool holds what the thread's own do
        mine.plain_by_default = not (library.interposes and library.active)
    if key is None and mine.plain_by_default:
        return _serve_from(Route())
    tag = str(key[0]).encode(errors="surrogateescape") if key else None
    route = Route(tag=tag, allocator=_allocator if key else None)
    route.pool = _pool_for(pools, mine, route, key)
    return _serve_from(route)


def enter_own(key: tuple[object, ...], allocator: object, tag: bytes | None) -> Route:
    """Serves this thread's CUDA tensors from a pool with an allocator of its own, until `leave`.

    Args:
        key: what the memory has in common; the same for the same allocator only.
        allocator: what `torch.cuda.MemPool` takes as one.
        tag: of the memory, or None if the memory is not pausable.

    Raises:
        NotSupportedError: there is no CUDA device for PyTorch, or no memory pools.
    """
    torch = _torch_with_cuda()
    if torch is None:
        raise NotSupportedError("PyTorch has no CUDA device here, so there is no memory to serve.")
    if not load().interposes:
        refuse_expandable_segments()
    route = Route(tag=tag, allocator=allocator)
    route.pool = _pool_for(_pools_of(torch), _thread.served, route, key)
    return _serve_from(route)


def _pool_for(pools: Pools, mine: _Served, route: Route, key: PoolKey) -> Pool:
    by = 0 if route.tag is None else load().c.tms_paused_by(route.tag)
    return pools.take(key, mine, route.allocator, by)


def set_aside() -> Route | None:
    """Takes the pool of the region that this thread is in off PyTorch's list, until `leave`."""
    return _serve_from(Route()) if _thread.routes else None


def leave(route: Route | None) -> None:
    """Undoes `enter`, `enter_own` or `set_aside`, in any order, on the same thread."""
    mine = _thread.served
    if route is None:
        return
    if route in mine.routes:
        mine.routes.remove(route)
    _settle(mine)  # even if an interruption has come before this


def busy() -> bool:
    """Whether this is a finalizer that interrupts a change of the thread's pool."""
    return bool(_thread.served.busy)


def depth() -> int:
    """How many routes this thread is in."""
    return len(_thread.routes)


def leave_since(depth: int) -> None:
    """Undoes what came since `depth` was that, and what an interruption has left undone."""
    mine = _thread.served
    del mine.routes[depth:]
    _settle(mine)


def look_again() -> None:
    """For a thread that has paused or resumed something: what it would be served may be paused."""
    torch, library = _torch_with_cuda(), load()
    if torch is None or _serves_all or not torch.cuda.is_initialized():
        return
    if _pools is None and not (library.interposes and library.active):
        return
    with contextlib.suppress(NotSupportedError):  # there are no pools, and so no regions
        _pools_of(torch)
        _settle(_thread.served)


def _serve_from(route: Route) -> Route:
    mine = _thread.served
    mine.routes.append(route)
    try:
        _settle(mine)
    except Exception:
        leave(route)
        raise
    return route


def _settle(mine: _Served) -> None:
    """Puts the pool that is to serve the thread on PyTorch's list, and takes another off it.

    After an interruption, the next call goes on from there.
    """
    if _pools is None or mine.busy:
        return
    wanted = mine.wanted(_pools)
    if mine.listed is not None and mine.listed is not wanted:
        mine.take_off()
    for pool in _pools.owned(mine):
        if pool not in mine.pools():
            _pools.give_back(pool, mine)
    if wanted is not None:
        mine.listed = wanted
        wanted.begin(mine.busy)
    else:
        _own_pools.let_go()


_serves_all = False


def serve_all() -> None:
    """Says that PyTorch's allocator belongs to libtms.so, which looks at regions by itself."""
    global _serves_all
    _serves_all = True


def region_pools() -> Pools | None:
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
    ids = {
        id_ for key, pools in _pools.known().items() if key for pool in pools for id_ in pool.ids
    }
    return sum(segment.total for segment in segments(sys.modules["torch"]) if segment.pool in ids)


def blocks() -> list[tuple[int, int, bool]]:
    """The blocks of PyTorch's allocator: the address and size of each, and whether it is free.

    A free block of the program's own pool is not among them: it serves tensors while it is paused.
    """
    # While the driver has the rest of the process, a thread may wait there for the resume with the
    # allocator's lock, and so would this one.
    if not works() or _serves_all or load().stats["everything"]:
        return []
    ours = {(0, 0)} | (_pools.ids if _pools is not None else set())
    with contextlib.suppress(NotSupportedError):
        return [
            (block.address, block.size, block.free)
            for block in blocks_of(sys.modules["torch"])
            if not block.free or block.pool in ours
        ]
    return []


def dispose(pool: Pool) -> None:
    """Gives free memory in `pool` back to the device, and the rest once it is freed.

    torch.cuda.empty_cache() does so from here on.
    """
    if _pools is not None and pool not in _thread.served.pools():
        _pools.drop(pool)
        _empty_cache()


def allocate_with(allocator: object) -> None:
    """Makes the pools of regions get their memory from a `torch.cuda.CUDAPluggableAllocator`.

    For processes in which nothing is interposed; before the first region.
    """
    global _allocator
    _allocator = allocator


def adopt(key: PoolKey, memory: Any) -> None:
    """Makes the caller's MemPool the one that serves regions of `key`.

    Raises:
        RuntimeError: PyTorch has no CUDA device.
    """
    pools = region_pools()
    if pools is None:
        raise RuntimeError("PyTorch has no CUDA device, and so no memory pools")
    pools.adopt(key, memory, _allocator)


def release_cache() -> bool:
    """Gives memory that PyTorch only caches back to the devices, that of regions included.

    False where there is no PyTorch that uses CUDA.
    """
    if not works():
        return False
    if _pools is not None:
        _pools.retire_idle()
    _empty_cache()
    return True


def _empty_cache() -> None:
    """torch.cuda.empty_cache(), which gives nothing back while a pool is on PyTorch's list."""
    mine = _thread.served
    if mine.listed is not None and not mine.routes:
        mine.take_off()
    try:
        sys.modules["torch"].cuda.empty_cache()
    finally:
        _settle(mine)


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


class _Served:
    """The pools that serve one thread."""

    def __init__(self) -> None:
        self.routes: list[Route] = []  # the innermost last
        self.plain_by_default = True
        self.listed: Pool | None = None
        """The pool that is on PyTorch's list for the thread, or about to be."""
        self.busy: list[None] = []
        """Not empty while PyTorch's list is being changed, as a finalizer may find it."""
        self.beside: Route | None = None
        """Outside all regions, where everything is pausable: instead of the default pool, while
        what that has cached is paused."""

    def pools(self) -> list[Pool]:
        routes = [*self.routes] + ([self.beside] if self.beside else [])
        return [route.pool for route in routes if route.pool]

    def wanted(self, pools: Pools) -> Pool | None:
        """The pool that is to serve the thread, or None for the default pool or a graph's."""
        if not self.routes:
            self.beside = self._beside(pools)
        route = self.routes[-1] if self.routes else self.beside
        if route is None or route.pool is None:
            return None
        by = 0 if route.tag is None else load().c.tms_paused_by(route.tag)
        if not route.pool.usable(by):
            route.pool = pools.take(route.pool.key, self, route.allocator, by)
        return route.pool

    def _beside(self, pools: Pools) -> Route | None:
        library = load()
        if not (library.interposes and library.active) or library.excluded:
            return None
        tag = library.tag
        by = library.c.tms_paused_by(tag)
        if not by or sys.modules["torch"].cuda.is_current_stream_capturing():
            return None
        if self.beside is not None and self.beside.tag == tag:
            return self.beside
        return Route(pools.take((tag, "beside the default pool"), self, None, by), tag)

    def take_off(self) -> None:
        """Takes the thread's pool off PyTorch's list."""
        pool = self.listed
        if pool is not None and not self.busy:
            pool.end(self.busy)
            self.listed = None


class _AtEnd:
    """Ends with its thread, whose number another thread may get: PyTorch tells threads by that."""

    def __init__(self, served: _Served) -> None:
        self._served = served

    def __del__(self) -> None:
        if _pools is None or sys.is_finalizing():
            return
        self._served.take_off()
        for pool in _pools.owned(self._served):
            _pools.give_back(pool, self._served)
        _own_pools.let_go()


class _Thread(thread_local):  # type: ignore[misc]
    """The current thread's."""

    def __init__(self) -> None:
        self.served = _Served()
        self.routes = self.served.routes
        self._at_end = _AtEnd(self.served)


_thread = _Thread()

_allocator: object = None
"""The source of the memory of regions' pools, or None for cudaMalloc."""

_pools: Pools | None = None


def _pools_of(torch: Any) -> Pools:
    global _pools
    if _pools is None:
        made = Pools(torch)
        _own_pools.watch(torch)
        _pools = _pools or made  # another thread's, or an interrupted one's
    return _pools
