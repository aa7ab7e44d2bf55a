"""Graphs: operations on tensors during a capture are put off to the replays."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import cuda as runtime

from . import _memory

_recording: list[Callable[[], None]] | None = None


def run(operation: Callable[[], None]) -> None:
    """Does a tensor's operation, or records it for the graph under capture."""
    if _recording is None:
        operation()
    else:
        _recording.append(operation)


def is_current_stream_capturing() -> bool:
    return _recording is not None


def graph_pool_handle() -> tuple[int, int]:
    return _memory.new_id()


class CUDAGraph:
    def __init__(self) -> None:
        self._operations: list[Callable[[], None]] = []
        self._pool: Any = None

    def pool(self) -> Any:
        return self._pool

    def replay(self) -> None:
        for operation in self._operations:
            operation()


class graph:
    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
    ) -> None:
        assert capture_error_mode in ("global", "thread_local", "relaxed")
        self._graph = cuda_graph
        self._pool = pool

    def __enter__(self) -> None:
        global _recording
        _memory.empty_cache()
        self._stream = ctypes.c_void_p()
        runtime.check(runtime._runtime.cudaStreamCreate(ctypes.byref(self._stream)))
        self._graph._pool = self._pool or _memory.new_id()
        _memory.begin(_memory.current_device(), self._graph._pool)
        runtime.check(runtime._runtime.cudaStreamBeginCapture(self._stream, 0))
        _recording = self._graph._operations

    def __exit__(self, *exception: object) -> None:
        global _recording
        _recording = None
        captured = ctypes.c_void_p()
        runtime.check(runtime._runtime.cudaStreamEndCapture(self._stream, ctypes.byref(captured)))
        runtime.check(runtime._runtime.cudaGraphDestroy(captured))
        runtime.check(runtime._runtime.cudaStreamDestroy(self._stream))
        _memory.end(_memory.current_device(), self._graph._pool)
