"""Functions that run in threads of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Callable, TypeVar

Result = TypeVar("Result")


def in_threads(*functions: Callable[[], Result]) -> list[Result]:
    """Runs them side by side, and returns what each returns; raises what one raises."""
    with ThreadPoolExecutor(len(functions)) as threads:
        running = [threads.submit(function) for function in functions]
        return [each.result() for each in running]
