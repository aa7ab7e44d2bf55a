from __future__ import annotations

import contextlib
from abc import ABC
from typing import Any

import torch_memory_saver

_memory_saver = torch_memory_saver.torch_memory_saver


class TorchMemorySaverAdapter(ABC):  # noqa: B024
    @staticmethod
    def create(enable: bool) -> Any:
        return _TorchMemorySaverAdapterReal() if enable else _TorchMemorySaverAdapterNoop()

    def check_validity(self, caller_name: str) -> None:
        assert self.enabled, caller_name

    def configure_subprocess(self) -> Any:
        raise NotImplementedError

    def region(self, tag: str, enable_cpu_backup: bool = False) -> Any:
        raise NotImplementedError

    def cuda_graph(self, **kwargs: Any) -> Any:
        raise NotImplementedError

    def disable(self) -> Any:
        raise NotImplementedError

    def pause(self, tag: str) -> None:
        raise NotImplementedError

    def resume(self, tag: str) -> None:
        raise NotImplementedError

    @property
    def enabled(self) -> bool:
        raise NotImplementedError


class _TorchMemorySaverAdapterReal(TorchMemorySaverAdapter):
    def configure_subprocess(self) -> Any:
        return torch_memory_saver.configure_subprocess()

    def region(self, tag: str, enable_cpu_backup: bool = False) -> Any:
        return _memory_saver.region(tag=tag, enable_cpu_backup=enable_cpu_backup)

    def cuda_graph(self, **kwargs: Any) -> Any:
        return _memory_saver.cuda_graph(**kwargs)

    def disable(self) -> Any:
        return _memory_saver.disable()

    def pause(self, tag: str) -> None:
        _memory_saver.pause(tag=tag)

    def resume(self, tag: str) -> None:
        _memory_saver.resume(tag=tag)

    @property
    def enabled(self) -> bool:
        return bool(_memory_saver.enabled)


class _TorchMemorySaverAdapterNoop(TorchMemorySaverAdapter):
    @contextlib.contextmanager
    def configure_subprocess(self) -> Any:
        yield

    @contextlib.contextmanager
    def region(self, tag: str, enable_cpu_backup: bool = False) -> Any:
        yield

    @property
    def enabled(self) -> bool:
        return False
