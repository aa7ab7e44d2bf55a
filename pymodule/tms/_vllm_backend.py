"""The sleep-mode backend "tms", for vLLM alone to import (tms._vllm.register)."""

from __future__ import annotations

from vllm.device_allocator import get_mem_allocator_instance
from vllm.device_allocator.sleep_mode_backend import CuMemBackend
from vllm.platforms import current_platform

from ._errors import NotSupportedError
from ._vllm import Allocator


class TmsBackend(CuMemBackend):  # type: ignore[misc]
    """Keeps at each level of sleep what vLLM's own backend keeps; `Allocator` does the work."""

    def __init__(self) -> None:
        super().__init__()
        allocator = get_mem_allocator_instance()
        if not isinstance(allocator, Allocator):
            raise NotSupportedError(
                "The sleep-mode backend 'tms' was chosen, but this worker's memory was not made by "
                "it: the plugin 'tms' was not loaded when the worker began. If VLLM_PLUGINS is set "
                "it must name tms, and the worker's class must derive from vLLM's WorkerBase."
            )
        self._allocator = allocator

    def state(self) -> str:
        # Not the last request: some tags may sleep on, or others have paused them.
        return "SUSPENDED" if self._allocator.asleep() else "RUNNING"

    @classmethod
    def is_supported(cls) -> bool:
        return bool(current_platform.is_cuda())

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return True  # graphs and communicators have no memory that sleeps
