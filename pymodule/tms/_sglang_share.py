"""sglang (0.5.17, 0.5.23) under `tms run --share`: a pause drops the KV cache of an idle one."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from ._library import load
from ._share_cache import Cache

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_ALONE = ("RadixCache", "ChunkCache")  # others keep blocks for sessions, or outside, too


def hooks() -> dict[str, Callable[..., Any]]:
    """Returns a wrapper for each function's name.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    load()
    return {f"{_SCHEDULER}.process_input_requests": _process, f"{_SCHEDULER}.on_idle": _idle}


def _process(original: Callable[..., Any], scheduler: Any, recv_reqs: Any) -> Any:
    if "_tms_cache" not in vars(scheduler):
        scheduler._tms_cache = _cache_of(scheduler)
    if recv_reqs and scheduler._tms_cache:
        scheduler._tms_cache.used()
    return original(scheduler, recv_reqs)


def _idle(original: Callable[..., Any], scheduler: Any) -> Any:
    cache = vars(scheduler).get("_tms_cache")  # none without _process, which makes it count again
    whole = cache and scheduler.disaggregation_mode.value == "null"  # 0.5.23 can change it later
    if whole and scheduler.is_fully_idle() and not scheduler.session_controller.sessions:
        cache.unused()
    return original(scheduler)


def _cache_of(scheduler: Any) -> Cache | None:
    """The KV cache of a scheduler of one rank, if only this scheduler reads it."""
    try:
        ranks, tree = _ranks(scheduler), scheduler.tree_cache
        apart = scheduler.enable_hisparse or scheduler.disaggregation_mode.value != "null"
        if ranks.tp_size > 1 or ranks.pp_size > 1 or apart or not _alone(tree):
            return None
        pool = vars(scheduler.token_to_kv_pool_allocator.get_kvcache())
    except (AttributeError, ImportError):  # another version
        return None
    names = ("k_buffer", "v_buffer", "kv_buffer")  # the rest of a pool is kept
    return Cache(lambda: [pool.get(name) or [] for name in names], scheduler.flush_cache)


def _ranks(scheduler: Any) -> Any:
    """Has tp_size and pp_size: the scheduler's own up to 0.5.17, the process's in 0.5.23."""
    if "ps" in vars(scheduler):
        return scheduler.ps
    return importlib.import_module("sglang.srt.runtime_context").get_parallel()


def _alone(tree: Any) -> bool:
    """Reports whether no other memory or process has blocks of this tree."""
    if type(tree).__name__ == "UnifiedRadixCache":  # of 0.5.23, which takes the others' place
        return tree.cache_controller is None and tree.linker is None
    return type(tree).__name__ in _ALONE
