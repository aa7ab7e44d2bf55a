"""The memory pools of regions: a `torch.cuda.MemPool` for what has something in common.

How PyTorch's allocator treats pools (c10/cuda/CUDACachingAllocator.cpp):

- A list per device holds (pool, filter) pairs; an allocation goes to a pool whose filter accepts
  it. Versions differ in which of several that is (the first begun, later the last), so at most one
  pool of this module is on the list for a thread.
- A pool can be on the list once. So two threads in the same region at the same time get a pool
  each. A pool that no thread uses serves the next thread.
- A pool exists per device, under one id, as long as its use count there is not 0. The MemPool
  object counts on the device on which it was made, and only there has the pool an allocator of its
  own; on the others the first use is kept. At 0, torch.cuda.empty_cache() releases the free
  segments in the pool, which can no longer be used.
- With expandable_segments:True a pool without an allocator of its own has segments that PyTorch
  maps chunk by chunk (`try_allocate_expandable_block`). PyTorch destroys the pool when as many
  stretches have been unmapped as were mapped, whatever is left in it, so such a pool's use count
  goes to 0 only when nothing in it is in use.

Nothing here waits for a lock: a finalizer or a signal handler may call in again at any point, on
the thread that it interrupts. A pool belongs to whoever claims it, by one operation of a dict.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import operator
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from ._errors import NotSupportedError
from ._library import load
from ._own_pools import listed, original
from ._private import private, segments_of

PoolKey = Optional[tuple[object, ...]]
"""The tag and settings of a region's memory, or None for memory that is not pausable."""

_Route = Callable[[int, tuple[int, int]], None]


class Functions:
    """PyTorch's functions that put a pool on the list of a device and take it off again."""

    def __init__(self, torch: Any) -> None:
        per_thread = hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")
        begin, end = (
            ("_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool")
            if per_thread
            else ("_cuda_beginAllocateToPool", "_cuda_endAllocateCurrentStreamToPool")
        )
        self.begin: _Route = original(private(torch, f"_C.{begin}"))
        self.end: _Route = original(private(torch, f"_C.{end}"))
        self.release: _Route = private(torch, "_C._cuda_releasePool")
        if not per_thread:
            warnings.warn(
                f"PyTorch {torch.__version__} has no memory pools per thread: while a thread is "
                "in a region, the CUDA tensors of other threads go into its pool too. "
                "PyTorch 2.8 and later keep them apart.",
                RuntimeWarning,
                stacklevel=2,
            )


class Pool:
    """A pool that can be used on all devices.

    Args:
        key: what its memory has in common.
        memories: the MemPool for each device; the same for all, made on `device`, where it has no
            allocator of its own.
        device: the current one.
        paused_by: tms_paused_by of the tag now.
    """

    def __init__(
        self,
        key: PoolKey,
        functions: Functions,
        memories: list[Any],
        device: int,
        paused_by: int,
    ) -> None:
        # Never destroyed: the destructor frees device memory and aborts the process if any thread
        # is in a region then, which can't be ruled out when the interpreter shuts down.
        for memory in memories:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))
        self.key = key
        self.memory = memories[device]
        self.ids: list[tuple[int, int]] = [memory.id for memory in memories]
        self.paused_by = paused_by
        self.dropped = False
        self._functions = functions
        one = len({*self.ids}) < len(self.ids)
        self._counted_on = {device} if one else {*range(len(memories))}
        self._listed: list[int] = []  # devices
        self._claim: dict[str, object] = {}

    @property
    def owner(self) -> object:
        """The pool's owner, or None."""
        return self._claim.get("by")

    def claim(self, owner: object) -> bool:
        """Makes it the owner's, unless it is another's."""
        return self._claim.setdefault("by", owner) is owner

    def let_go(self, owner: object) -> None:
        """Lets others claim it, if it is the owner's."""
        still = map(operator.is_, map(self._claim.get, ["by"]), [owner])
        in_one_go(map(self._claim.pop, itertools.compress(["by"], still)))

    def usable(self, paused_by: int) -> bool:
        """Whether what it keeps of freed tensors is not paused."""
        return paused_by in (0, self.paused_by)

    def begin(self, busy: list[None]) -> None:
        """From here on this thread's allocations come from this pool, on every device.

        Args:
            busy: has something in it during the call, because a finalizer can run in between.
        """
        listed.add(self)
        begun = map(
            self._functions.begin, self._unlisted(), map(self.ids.__getitem__, self._unlisted())
        )
        devices = map(operator.itemgetter(0), zip(self._unlisted(), begun))
        try:
            in_one_go(
                map(busy.append, [None]), map(self._listed.append, devices), map(list.clear, [busy])
            )
        except RuntimeError:
            busy.clear()
            self.end(busy)
            raise

    def _unlisted(self) -> Iterator[int]:
        return itertools.filterfalse(self._listed.__contains__, range(len(self.ids)))

    def end(self, busy: list[None]) -> None:
        """Undoes `begin`, on any thread."""
        in_one_go(
            map(busy.append, [None]),
            map(self._functions.end, self._listed, map(self.ids.__getitem__, self._listed)),
            map(
                self._functions.release, self._counted(), map(self.ids.__getitem__, self._counted())
            ),
            map(self._counted_on.update, [self._listed]),
            map(list.clear, [self._listed]),
            map(listed.discard, [self]),
            map(list.clear, [busy]),
        )

    def _counted(self) -> Iterator[int]:
        return filter(self._counted_on.__contains__, self._listed)

    def retire(self) -> None:
        """Takes the use count to 0: free memory in the pool is ordinary cache from here on."""
        devices = sorted(self._counted_on)
        in_one_go(map(self._functions.release, devices, [self.ids[device] for device in devices]))


def in_one_go(*calls: Iterable[object]) -> None:
    """Makes calls from C, where no signal handler can come between two of them and raise.

    What they are given is looked up then, because a finalizer may run before the first of them.
    """
    collections.deque(itertools.chain(*calls), 0)


class Pools:
    """The pools of all regions."""

    def __init__(self, torch: Any) -> None:
        _refuse_what_cannot_be_paused(torch)
        torch.cuda.init()
        self._torch = torch
        self._functions = Functions(torch)
        self._all: list[Pool] = []  # that are not retired, the oldest first
        self.ids: set[tuple[int, int]] = set()
        """Of all pools that there have been."""

    def take(
        self, key: PoolKey, owner: object, allocator: object = None, paused_by: int = 0
    ) -> Pool:
        """A pool of `key` that no other thread is in, and in which nothing is paused.

        Args:
            owner: of the pool from here on; it gets one again that it has already.
            allocator: the source of new pools' memory, or None for cudaMalloc.
            paused_by: tms_paused_by of the tag.
        """
        alike = [pool for pool in self._all if pool.key == key]
        for pool in sorted(alike, key=lambda pool: pool.owner is not owner):
            found = pool.usable(paused_by) and (pool.owner is owner or not pool.dropped)
            if found and pool.claim(owner):
                return pool
        for pool in alike:
            if pool.paused_by:  # made while the tag was paused, as the one that is needed now
                self.drop(pool)
        pool = self._make(key, allocator, paused_by)
        pool.claim(owner)
        self._all.append(pool)
        return pool

    def _make(self, key: PoolKey, allocator: object, paused_by: int, adopted: Any = None) -> Pool:
        torch = self._torch
        make, count = torch.cuda.MemPool, torch.cuda.device_count()
        current = torch.cuda.current_device()
        if allocator is None:
            memories = [adopted or make()] * count
        else:
            _refuse_allocators_in_contexts(torch)
            memories = []
            exchange = private(torch, "cuda._maybe_exchange_device")  # makes no context there
            try:
                for device in range(count):
                    exchange(device)
                    mine = adopted is not None and device == current
                    memories.append(adopted if mine else make(allocator))
            finally:
                exchange(current)
        made = Pool(key, self._functions, memories, current, paused_by)
        self.ids.update(made.ids)
        return made

    def owned(self, owner: object) -> list[Pool]:
        """The pools that a thread has claimed."""
        return [pool for pool in self._all if pool.owner is owner]

    def give_back(self, pool: Pool, owner: object) -> None:
        """Lets other threads take the owner's `pool`."""
        pool.let_go(owner)
        if pool.dropped:
            self._retire(pool)

    def retire_idle(self) -> None:
        """Retires the pools that no thread is in; the next region gets a new pool."""
        for pool in [*self._all]:
            self._retire(pool)

    def known(self) -> dict[PoolKey, list[Pool]]:
        """The pools that are not retired, by key, the oldest first."""
        found: dict[PoolKey, list[Pool]] = {}
        for pool in [*self._all]:
            if not pool.dropped:
                found.setdefault(pool.key, []).append(pool)
        return found

    def drop(self, pool: Pool) -> None:
        """Retires `pool`, at once or when the thread in it leaves it."""
        pool.dropped = True
        self._retire(pool)

    def _retire(self, pool: Pool) -> None:
        mine = object()
        if not pool.claim(mine):
            return  # the thread in it does so, or has done so
        try:
            if self._retirable(pool):
                self._all.remove(pool)
                pool.retire()
        finally:
            if pool in self._all:
                pool.dropped = False
                pool.let_go(mine)

    def _retirable(self, pool: Pool) -> bool:
        """Whether `retire` is safe: nothing in it is in use, or no segment is expandable."""
        library = load()
        if not (library.interposes and library.c.tms_maps_memory()):
            return True  # a snapshot takes as long as there are tensors
        return not any(
            segment.expandable and segment.active and segment.pool in pool.ids
            for segment in segments_of(self._torch, pool.memory)
        )

    def adopt(self, key: PoolKey, memory: Any, allocator: object) -> None:
        """Makes the caller's MemPool the one that serves regions of `key`."""
        self._all.append(self._make(key, allocator, 0, memory))


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


def _refuse_allocators_in_contexts(torch: Any) -> None:
    """PyTorch 2.6 and 2.7 ask a pool's allocator only within a MemPoolContext, and also to free."""
    if hasattr(torch.cuda, "MemPoolContext"):
        raise NotSupportedError(
            f"PyTorch {torch.__version__} takes memory from a pool's own allocator only where a "
            "MemPoolContext surrounds every allocation and every release, so without a preload "
            "nothing would be pausable. Start the process with LD_PRELOAD=$(python -m tms --path), "
            "or use PyTorch 2.8 or later."
        )
