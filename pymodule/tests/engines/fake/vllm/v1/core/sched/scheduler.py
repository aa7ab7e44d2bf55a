"""A scheduler with one block, for one request at a time, which is a number."""

from __future__ import annotations

from types import SimpleNamespace


class BlockPool:
    num_gpu_blocks = 2  # one is never free
    used = 0

    def get_num_free_blocks(self) -> int:
        return 1 - self.used


class Scheduler:
    kv_cache_manager = SimpleNamespace(block_pool=BlockPool())
    cached: int | None = None  # the request whose block is in the prefix cache
    resets = 0

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        assert self.kv_cache_manager.block_pool.used == 0
        self.cached, self.resets = None, self.resets + 1
        return True
