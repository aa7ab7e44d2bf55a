"""What the engine's launcher and a scheduler's process do with memory, in their order."""

from __future__ import annotations

import multiprocessing
from functools import partial
from types import SimpleNamespace
from typing import Any

from sglang.srt.plugins import load_plugins
from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter


def launch(hook_mode: str | None = None, graphs: bool = True) -> None:
    """Starts a scheduler. `hook_mode`: sglang's --memory-saver-hook-mode, of pull request 32976."""
    load_plugins()
    _choose(hook_mode)
    adapter = TorchMemorySaverAdapter.create(enable=True)
    process = multiprocessing.get_context("spawn").Process(
        target=run_scheduler_process, args=(hook_mode, graphs)
    )
    with adapter.configure_subprocess():
        process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)


def _choose(hook_mode: str | None) -> None:
    if hook_mode:
        import torch_memory_saver

        torch_memory_saver.torch_memory_saver.hook_mode = hook_mode


def run_scheduler_process(hook_mode: str | None, graphs: bool) -> None:
    load_plugins()
    _choose(hook_mode)
    import torch
    from common import SIZE, SLACK, free, full, holds
    from torch.cuda import _memory

    settings = _memory.settings
    adapter = TorchMemorySaverAdapter.create(enable=True)
    assert not TorchMemorySaverAdapter.create(enable=False).enabled
    adapter.check_validity(caller_name="here")
    torch.cuda.synchronize()
    initial = free()
    with adapter.region("weights", enable_cpu_backup=True):
        weights = full(3)
        with adapter.disable():
            ordinary = full(9)
    with adapter.region("kv_cache"):
        cache = full(4, 2 * SIZE)
    captured = []
    if graphs:
        graph = torch.cuda.CUDAGraph()
        capture = partial(adapter.cuda_graph, tag="cuda_graph")
        with capture(cuda_graph=graph, pool=torch.cuda.graph_pool_handle(), stream=None):
            captured.append(weights + 1)
        graph.replay()
        assert holds(captured[0], 4)
    tags = ["kv_cache", "weights", *(["cuda_graph"] if graphs else [])]
    full_up = initial - free()
    assert full_up >= 4 * SIZE
    for _ in range(2):
        for tag in tags:
            adapter.pause(tag)
        assert abs(initial - SIZE - free()) <= SLACK and holds(ordinary, 9)
        for tag in reversed(tags):
            adapter.resume(tag)
        assert initial - free() == full_up and holds(weights, 3)
        cache.fill_(4)
    assert _memory.settings == settings
    kinds = TorchMemorySaverAdapter.create(enable=True)
    print("served by", [name.__name__ for name in type(kinds).__mro__][:2])


class RadixCache:
    cached: int | None = None  # the request whose block is in the prefix cache


class UnifiedRadixCache(RadixCache):
    """The cache of 0.5.23."""

    cache_controller = linker = None


class Scheduler:
    """With one block, for one request at a time, which is a number that its block is full of."""

    enable_hisparse = False
    flushes = 0

    def __init__(self, saves: bool) -> None:
        """`saves`: sglang's --enable-memory-saver, for the cache."""
        from common import SIZE, full

        self.ps = SimpleNamespace(tp_size=1, pp_size=1)
        self.disaggregation_mode = SimpleNamespace(value="null")
        self.session_controller = SimpleNamespace(sessions={})
        self.tree_cache = RadixCache()
        self.waiting_queue: list[int] = []
        self.weights = full(1)
        with TorchMemorySaverAdapter.create(enable=saves).region("kv_cache"):
            pool = SimpleNamespace(k_buffer=[full(0, 4 * SIZE)], v_buffer=None)
        self.token_to_kv_pool_allocator = SimpleNamespace(get_kvcache=lambda: pool)
        self._cache = pool.k_buffer[0]

    def asked(self, request: int) -> Any:
        """Whether the answer to the request was right, and whether its block was there."""
        answer = self._turn([request])
        for _ in range(3):
            self._turn([])
        return answer

    def _turn(self, requests: list[int]) -> Any:
        """What the event loop repeats."""
        self.process_input_requests(requests)
        if not requests:
            return self.on_idle()
        return self._run(self.waiting_queue.pop())

    def _run(self, request: int) -> Any:
        from common import holds

        there = self.tree_cache.cached == request
        if not there:
            self._cache.fill_(request)
        self.tree_cache.cached = request
        return holds(self._cache, request) and holds(self.weights, 1), there

    def process_input_requests(self, recv_reqs: list[int]) -> None:
        self.waiting_queue += recv_reqs

    def on_idle(self) -> None:
        """Called while no request runs, and some may wait."""

    def is_fully_idle(self, for_health_check: bool = False) -> bool:
        return not self.waiting_queue

    def flush_cache(self, empty_cache: bool = True) -> bool:
        assert self.is_fully_idle()
        self.tree_cache.cached, self.flushes = None, self.flushes + 1
        return True
