"""vLLM under `tms run --share`: while no request has blocks, the KV cache has no contents.

So a pause copies weights alone, as vLLM's sleep of level 1 does, and the prefix cache is empty
after it. What this module uses of vLLM was read in 0.33.0.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from ._control import stats
from ._library import load


def hook(core: Any) -> None:
    """Makes each step of vLLM's class EngineCore tell when blocks may be used, and are not.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    load()
    if not hasattr(core.step, "_tells_tms"):
        core.step = _telling(core.step)
        core.step_with_batch_queue = _telling(core.step_with_batch_queue)


def _telling(step: Any) -> Any:
    @functools.wraps(step)
    def told(self: Any) -> Any:
        cache = vars(self).get("_tms_cache")
        if cache is None:
            cache = self._tms_cache = _Cache(self)
        cache.used()
        result = step(self)
        cache.unused()
        return result

    told._tells_tms = True  # type: ignore[attr-defined]
    return told


class _Cache:
    """The KV cache of an engine, if its worker is in this process and nobody else reads it."""

    def __init__(self, core: Any) -> None:
        self._scheduler = core.scheduler
        self._runner: Any = None
        worker: Any = getattr(core.model_executor, "driver_worker", None)
        manager: Any = getattr(core.scheduler, "kv_cache_manager", None)
        if worker and manager and core.vllm_config.kv_transfer_config is None:
            self._runner, self._pool = worker.worker.model_runner, manager.block_pool
        self._parts: list[Any] = []  # storages without contents
        self._moves = 0  # when they were said to be so

    def unused(self) -> None:
        """The next pause keeps no contents if no request has blocks, not even one that waits."""
        if self._runner is None or self._pool.get_num_free_blocks() + 1 < self._pool.num_gpu_blocks:
            return  # one block is never free
        self._moves = _moves()
        found = {part.data_ptr(): part for part in _storages(self._runner.kv_caches)}
        self._parts = list(found.values())
        self._mark(live=False)

    def used(self) -> None:
        """A request may come: contents count again, and those lost meanwhile are forgotten."""
        if self._parts:
            self._mark(live=True)
            self._parts = []
            if self._moves != _moves():
                self._scheduler.reset_prefix_cache(True)

    def _mark(self, *, live: bool) -> None:
        """Says whether there are contents. What is paused refuses: its pause ended the mark."""
        for part in self._parts:
            whole = (ctypes.c_size_t * 2)(0, part.nbytes())  # a tms_range
            load().c.tms_live(part.data_ptr(), part.nbytes(), whole, int(live))


def _storages(caches: Any) -> list[Any]:
    if hasattr(caches, "untyped_storage"):
        return [caches.untyped_storage()]
    return [part for each in caches for part in _storages(each)]


def _moves() -> int:
    """How often something was paused or resumed."""
    devices = stats()["devices"]
    return sum(device["pauses"]["count"] + device["resumes"]["count"] for device in devices)
