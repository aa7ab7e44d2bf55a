"""Stands for torch_memory_saver with its pull request 79; its own two hook modes fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

_modes: dict[str, tuple[Callable[[], Any], bool]] = {}


def register_hook_mode(name: str, factory: Callable[[], Any], *, uses_preload: bool = True) -> None:
    if name in _modes:
        raise ValueError(f"{name} is registered")
    _modes[name] = factory, uses_preload


class TorchMemorySaver:
    enabled = True

    def __init__(self) -> None:
        self._mode, self._made = "preload", None

    def _set_hook_mode(self, name: str) -> None:
        if name not in _modes:
            raise ValueError(f"{name} is unknown")
        self._mode = name

    hook_mode = property(None, _set_hook_mode)

    @property
    def _impl(self) -> Any:
        self._made = self._made or _modes[self._mode][0]()
        return self._made

    @contextlib.contextmanager
    def region(self, tag: str = "default", enable_cpu_backup: bool = False) -> Iterator[None]:
        with self._impl.region(tag=tag, enable_cpu_backup=enable_cpu_backup):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
    ) -> Iterator[None]:
        with self._impl.cuda_graph(
            cuda_graph=cuda_graph,
            pool=pool,
            stream=stream,
            capture_error_mode=capture_error_mode,
            tag=tag,
            enable_cpu_backup=enable_cpu_backup,
        ):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        with self._impl.disable():
            yield

    def pause(self, tag: str | None = None) -> None:
        self._impl.pause(tag=tag)

    def resume(self, tag: str | None = None) -> None:
        self._impl.resume(tag=tag)


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    assert not _modes[torch_memory_saver._mode][1], "its own library would be preloaded"
    yield


torch_memory_saver = TorchMemorySaver()
