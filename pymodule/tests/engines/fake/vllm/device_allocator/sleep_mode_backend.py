from __future__ import annotations

import importlib
import os
from abc import ABC, abstractmethod
from typing import Any

from vllm import __version__
from vllm.device_allocator import get_mem_allocator_instance

if os.environ.get("FAKE_OLD"):
    raise ImportError("No module named 'vllm.device_allocator.sleep_mode_backend'")


class SleepModeBackend(ABC):
    def __init__(self) -> None:
        self._state = "RUNNING"

    @abstractmethod
    def suspend(self, level: int = 1) -> None: ...

    @abstractmethod
    def resume(self, tags: list[str] | None = None) -> None: ...

    def state(self) -> str:
        return self._state

    @classmethod
    def is_supported(cls) -> bool:
        return True

    @classmethod
    def preserves_communicators(cls) -> bool:
        return False

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return False

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        return False


class CuMemBackend(SleepModeBackend):
    def suspend(self, level: int = 1) -> None:
        self._state = "SUSPENDED"
        offloaded: tuple[str, ...] = ("weights",) if level == 1 else ()
        if __version__ != "0.26.0":
            offloaded += ("runtime", "cudagraph")
        get_mem_allocator_instance().sleep(offload_tags=offloaded)

    def resume(self, tags: list[str] | None = None) -> None:
        self._state = "RESUMING"
        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"

    if __version__ != "0.26.0":

        def discard(self, tags: tuple[str, ...]) -> None:
            get_mem_allocator_instance().discard(tags)
            self._state = "SUSPENDED"

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True


class SleepModeBackendFactory:
    _registry: dict[str, tuple[str, str]] = {}

    @classmethod
    def register_backend(cls, name: str, module_path: str, class_name: str) -> None:
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend {name!r} is already registered.")
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def get_backend_class(cls, name: str) -> Any:
        module, class_name = cls._registry[name]
        return getattr(importlib.import_module(module), class_name)

    @classmethod
    def create_backend(cls, model_config: Any) -> Any:
        backend = cls.get_backend_class(model_config.sleep_mode_backend)
        if not backend.is_supported():
            raise ValueError("not supported on this platform")
        return backend()


SleepModeBackendFactory.register_backend(
    "cumem", "vllm.device_allocator.sleep_mode_backend", "CuMemBackend"
)
