"""vLLM (0.33.0) under `tms run --share`: while no request has blocks, a pause drops the cache."""

from __future__ import annotations

import functools
from typing import Any

from ._library import load
from ._share_cache import Cache


def hook(core: Any) -> None:
    """Makes each step of EngineCore tell whether blocks are used; raises NotPreloadedError."""
    load()
    if not hasattr(core.step, "_tells_tms"):
        core.step = _telling(core.step)
        core.step_with_batch_queue = _telling(core.step_with_batch_queue)


def _telling(step: Any) -> Any:
    @functools.wraps(step)
    def told(self: Any) -> Any:
        if "_tms_cache" not in vars(self):
            self._tms_cache = _cache_of(self)
        if self._tms_cache is None:
            return step(self)
        self._tms_cache.used()
        result = step(self)
        pool = self.scheduler.kv_cache_manager.block_pool
        if pool.get_num_free_blocks() + 1 >= pool.num_gpu_blocks:  # one block is never free
            self._tms_cache.unused()
        return result

    told._tells_tms = True  # type: ignore[attr-defined]
    return told


def _cache_of(core: Any) -> Cache | None:
    """The KV cache of an engine, if its worker is in this process and is the only reader."""
    worker: Any = getattr(core.model_executor, "driver_worker", None)
    manager: Any = getattr(core.scheduler, "kv_cache_manager", None)
    if not worker or not manager or core.vllm_config.kv_transfer_config is not None:
        return None
    runner = worker.worker.model_runner
    return Cache(lambda: runner.kv_caches, lambda: core.scheduler.reset_prefix_cache(True))
