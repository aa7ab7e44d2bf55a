"""What the worker does with memory, in its order."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from common import SIZE, full

from vllm import __version__
from vllm.device_allocator import get_mem_allocator_instance
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
from vllm.plugins import load_general_plugins
from vllm.v1.worker.worker_base import WorkerBase


def request_memory(init_snapshot: Any, cache_config: Any, external_weight_memory: int = 0) -> int:
    wanted = int(init_snapshot.total_memory * cache_config.gpu_memory_utilization)
    if init_snapshot.free_memory < wanted - external_weight_memory:
        raise ValueError("Free memory on device is less than desired GPU memory utilization")
    return wanted - external_weight_memory


if __version__ != "0.26.0":

    def zero_weights(model: Any) -> None:
        for _, weight in model.named_parameters(remove_duplicate=False):
            weight.fill_(0)


class Worker(WorkerBase):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._backend: Any = None

    def init_device(self) -> None:
        free, total = torch.cuda.mem_get_info()
        snapshot = SimpleNamespace(free_memory=free, total_memory=total)
        given: tuple[int, ...] = ()
        if __version__ != "0.26.0":
            given = (self._loader().get_external_weight_memory(self.vllm_config),)
        self.requested_memory = request_memory(snapshot, self.vllm_config.cache_config, *given)

    def load_checkpoint(self) -> Any:
        """The model of fake model_executor; `load_model` makes plain weights."""
        self.model = self._loader().load_model(
            vllm_config=self.vllm_config, model_config=self.model_config
        )
        return self.model

    def reset_weights(self) -> None:
        zero_weights(self.model)

    def _loader(self) -> Any:
        from vllm.model_executor.model_loader import get_model_loader

        return get_model_loader(self.vllm_config.load_config)

    def _pool(self, tag: str) -> Any:
        if not self.model_config.enable_sleep_mode:
            return contextlib.nullcontext()
        allocator = get_mem_allocator_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0
        return allocator.use_memory_pool(tag=tag)

    def load_model(self) -> None:
        with self._pool("weights"):
            temporary = full(9, 2 * SIZE)
            self.weights = full(3)
            del temporary

    def initialize_from_config(self) -> None:
        cache_pool = self._pool("kv_cache")
        with contextlib.nullcontext() if __version__ == "0.26.0" else self._pool("runtime"):
            self.state = None if __version__ == "0.26.0" else full(7)
            with cache_pool:
                self.cache = full(4, 2 * SIZE)

    def sleep(self, level: int = 1) -> None:
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        self.backend.suspend(level)
        torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] >= before, "Memory usage increased after sleeping."

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.backend.resume(tags)

    def discard(self, tags: tuple[str, ...]) -> None:
        self.backend.discard(tags)

    @property
    def backend(self) -> Any:
        if self._backend is None:
            self._backend = SleepModeBackendFactory.create_backend(self.model_config)
        return self._backend

    def shutdown(self) -> None:
        from vllm.device_allocator.cumem import CuMemAllocator

        self.weights = self.cache = None
        if CuMemAllocator.instance is not None:
            CuMemAllocator.instance.release_pools()


def start(*, sleep_mode: bool = True, load: bool = True, **config: object) -> Worker:
    """A worker as vLLM's wrapper makes it; `config` is the rest of the ModelConfig."""
    load_general_plugins()
    chosen = {"sleep_mode_backend": "cumem", "enable_sleep_mode": sleep_mode, **config}
    asked = SimpleNamespace(
        model_config=SimpleNamespace(**chosen), load_config=SimpleNamespace(load_format="auto")
    )
    worker = Worker(asked, 0, 0, "")
    if load:
        worker.load_model()
        worker.initialize_from_config()
    return worker
