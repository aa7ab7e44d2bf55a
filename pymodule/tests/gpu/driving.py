"""What the drivers of engines share."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Callable, TextIO

import llama

BEGUN = time.perf_counter()


def say(*words: object) -> None:
    print(f"[{time.perf_counter() - BEGUN:7.2f}]", *words, file=sys.stderr, flush=True)


def offline(**variables: str) -> None:
    """Nothing is fetched, and ranks meet on this machine; the environment's values come first."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        **variables,
    }.items():
        os.environ.setdefault(name, value)


def requests(
    port: int | None, answers: TextIO, **first: Any
) -> Iterator[tuple[str, Callable[..., None]]]:
    """Each line that a driver is asked, and the function that answers with its named arguments, as
    JSON.

    The lines are those of stdin, and `first` is said before them. With `port` each connection to it
    on this machine asks one line; `first` goes to `answers` even so.
    """

    def answer(to: TextIO = answers, **said: Any) -> None:
        with contextlib.suppress(OSError):  # a restore closes connections
            print(json.dumps(said), file=to, flush=True)

    answer(**first)
    if port is None:
        for line in sys.stdin:
            yield line.strip(), answer
        return
    with socket.create_server(("127.0.0.1", port)) as listening:
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("r") as asked, connection.makefile("w") as to:
                yield asked.readline().strip(), functools.partial(answer, to)


def leaves_driver_when_asked() -> None:
    """At SIGUSR2 a process ends NVML, and listens to tms if it still has the driver open: for CUDA.

    PyTorch begins NVML to count devices, and does not end it, so files of the driver stay open.
    """

    def leave(*_: Any) -> None:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        while library.nvmlShutdown() == 0:
            pass
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}").startswith("/dev/nvidia"):
                    importlib.import_module("tms").serve()
                    return

    signal.signal(signal.SIGUSR2, leave)


def sglang_engine(**settings: Any) -> Any:
    """An sglang.Engine of the model, with its memory in torch_memory_saver."""
    import sglang

    defaults: dict[str, Any] = {
        "model_path": settings.get("model_path") or llama.folder(),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "random_seed": 42,
        "attention_backend": "fa3",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "enable_memory_saver": True,
        "disable_radix_cache": True,  # everything is computed each time
        "max_running_requests": 16,
        "cuda_graph_bs_decode": [1, 2, 4],
        "disable_prefill_cuda_graph": True,
        "disable_flashinfer_autotune": True,
        "log_level": "warning",
    }
    return sglang.Engine(**{**defaults, **settings})
