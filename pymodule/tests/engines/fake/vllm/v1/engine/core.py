"""An engine with a prefix cache. A request is a number, which its block is full of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from common import SIZE, full, holds

from vllm.plugins import load_general_plugins
from vllm.v1.core.sched.scheduler import Scheduler


class EngineCore:
    weights: Any
    cache: Any
    request: int
    scheduler: Scheduler

    def step(self) -> Any:
        """Whether the answer to the request was right, and whether its block was there."""
        request, there = self.request, self.scheduler.cached == self.request
        if not there:
            self.cache.fill_(request)
        self.scheduler.cached = request
        return holds(self.cache, request) and holds(self.weights, 1), there

    def step_with_batch_queue(self) -> Any:
        return self.step()


def start() -> EngineCore:
    """An engine as its __init__ makes it."""
    load_general_plugins()
    core: Any = EngineCore()
    core.vllm_config, core.scheduler = SimpleNamespace(kv_transfer_config=None), Scheduler()
    core.weights, core.cache = full(1), full(0, 4 * SIZE)
    runner = SimpleNamespace(kv_caches=[core.cache])
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    core.model_executor = SimpleNamespace(driver_worker=worker)
    return core  # type: ignore[no-any-return]
