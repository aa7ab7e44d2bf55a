"""Stands for torch_memory_saver 0.0.10, in which nothing may be used in these tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class TorchMemorySaver:
    enabled = True

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"torch_memory_saver.{name} is used")


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    raise AssertionError("torch_memory_saver.configure_subprocess is used")
    yield


torch_memory_saver = TorchMemorySaver()
