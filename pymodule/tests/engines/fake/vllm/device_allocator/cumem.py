"""An allocator that remembers what it was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class CuMemAllocator:
    instance: Any = None
    default_tag = "default"

    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []
        self.usage = 0

    @staticmethod
    def get_instance() -> Any:
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = CuMemAllocator()
        return CuMemAllocator.instance

    def release_pools(self) -> None:
        self.seen.append(("release_pools", None))

    def close(self) -> None:
        self.release_pools()

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        self.seen.append(("sleep", offload_tags))

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.seen.append(("wake_up", tags))

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        self.seen.append(("use_memory_pool", tag))
        yield

    def get_current_usage(self) -> int:
        return self.usage
