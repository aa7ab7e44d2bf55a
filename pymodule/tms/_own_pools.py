"""The program's own `torch.cuda.MemPool`s, beside those of regions.

Such a pool outlives the regions that it is used in, and serves tensors of none, too. So what it
takes from the device is as outside all regions, and a region that is entered while it serves does
nothing. `torch.cuda.use_mem_pool` begins and ends pools by functions of `torch._C` that it calls by
names of torch.cuda.memory, which this module replaces. The graphs of torch.compile use pools, too,
by the names of `torch._C`: a graph's memory belongs to the region in which it was captured.

A MemPool that nothing refers to any longer empties itself, and aborts the process if any pool is
on PyTorch's list then (release_cached_blocks, in 2.11). So while a region has one there, MemPools
wait.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import os
import sys
from typing import Any, Callable

from ._warning import warn

listed: set[object] = set()
"""The pools of regions that are on PyTorch's list, or are about to be."""

_waiting: list[object] = []
"""The MemPools that nothing else refers to any longer."""

_NAMES = {
    "begin": (
        "_cuda_beginAllocateCurrentThreadToPool",
        "_cuda_beginAllocateCurrentStreamToPool",
        "_cuda_beginAllocateToPool",
    ),
    "end": ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"),
}


def let_go() -> None:
    """Destroys the MemPools that wait, if no region has a pool on PyTorch's list."""
    if _waiting:  # the rest in C, so that no thread begins a pool between the two steps
        nothing_listed = map(operator.not_, [listed])
        all_of_them = itertools.compress([slice(None)], nothing_listed)
        collections.deque(map(_waiting.__delitem__, all_of_them), 0)


def watch(torch: Any) -> None:
    """Calls `begun` and `ended` for pools that the program's Python code uses from here on."""
    told = {"begin": lambda identity: begun(identity), "end": lambda identity: ended(identity)}
    for kind, names in _NAMES.items():
        for name in names:
            function = getattr(torch.cuda.memory, name, None)
            if function is not None and original(function) is function:
                setattr(torch.cuda.memory, name, _telling(function, told[kind]))
    pools = torch.cuda.MemPool
    before = getattr(pools, "__del__", None)
    if original(before) is before:
        pools.__del__ = _waiting_to_end(before)


def begun(identity: tuple[int, int]) -> None:
    """Hears that a pool begins to serve this thread; _scope.py replaces it."""


def ended(identity: tuple[int, int]) -> None:
    """Hears that it ends, perhaps on another thread; _scope.py replaces it."""


def original(function: Any) -> Any:
    """PyTorch's own function, where `watch` has replaced it."""
    return getattr(function, "_of_tms", function)


def _telling(function: Any, tell: Callable[[tuple[int, int]], None]) -> Any:
    @functools.wraps(function)
    def told(device: int, identity: tuple[int, int]) -> None:
        function(device, identity)
        if identity[0] == 0:  # of a MemPool; a graph's pool has another number
            tell(identity)

    told._of_tms = function  # type: ignore[attr-defined]
    return told


def _waiting_to_end(before: Any) -> Any:
    def __del__(pool: Any) -> None:
        if before is not None:
            before(pool)
        if listed and not sys.is_finalizing():
            _waiting.append(pool)

    __del__._of_tms = before  # type: ignore[attr-defined]
    return __del__


_warned = False


def tell_of_regions() -> None:
    """Says once that regions make nothing pausable of such pools."""
    global _warned
    if not _warned:
        _warned = True
        warn(
            "torch.cuda.use_mem_pool and a region are in use together: what the program's own "
            "MemPool takes from the device is not pausable, because the pool serves tensors "
            f"outside the region, too (process {os.getpid()})."
        )
