"""vLLM's sleep mode by tms: the plugin that vLLM loads, and the allocator for its memory.

It also registers the load format "tms" (tms._vllm_loader) in workers that ask for it, and lets an
engine without requests give way without its cache (tms._vllm_share).

A worker asks the sleep-mode backend "tms" (tms._vllm_backend) to sleep and wake up, and `Allocator`
takes the place of its `CuMemAllocator` (docs/design/engines.md).

What this module uses of vLLM was read in 0.26.0 and 0.33.0; tests/engines/test_vllm_plugin.py
compares the names and signatures with the installed vLLM.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from . import _torch
from ._arguments import switched_on
from ._attached import attached
from ._control import TagStats, pause, resume, stats, trim
from ._errors import NotPreloadedError, NotSupportedError
from ._expandable import without_expandable_segments
from ._region import pausable
from ._scope import ThreadScope
from ._together import Part
from .distributed import meeting_of_engine

NAME = "tms"
"""The backend's name, as in `vllm serve --sleep-mode-backend tms`."""

PREFIX = "vllm."
"""tms has the tags of vLLM with this prefix: `tms.pause("vllm.weights")`."""

_VARIABLE = "TMS_VLLM"
_DEFERRABLE = ("weights", "kv_cache")
"""Tags that a wake-up of some tags may leave asleep; vLLM's callers know of no others."""

_REFUSED = {
    "sleep_mode_offload_cudagraph": "it is for the memory of vLLM's own backend, and tms leaves "
    "the memory of CUDA graphs on the device",
    "enable_nccl_comm_suspend": "it makes NCCL give memory up after the sleep, outside its "
    "transaction; `tms pause PID --everything` takes that memory too",
}
"""Settings of vLLM 0.33.0 that tms does not go with, and why."""

_TIMEOUT = 60.0
"""Seconds for the other workers to come to a sleep."""

_logger = logging.getLogger("vllm.tms")  # below vLLM's own, so that it is shown like vLLM's


def register() -> None:
    """The entry point (group vllm.general_plugins); vLLM calls it in each of its processes.

    Raises:
        NotSupportedError: TMS_VLLM asks for tms, and this vLLM has no sleep-mode backends.
    """
    if switched_on("TMS_SHARE"):
        with contextlib.suppress(ImportError, AttributeError, NotPreloadedError):
            core = importlib.import_module("vllm.v1.engine.core").EngineCore
            importlib.import_module("tms._vllm_share").hook(core)
    try:
        backends = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
        factory = backends.SleepModeBackendFactory
        worker = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
    except (ImportError, AttributeError) as error:
        if not switched_on(_VARIABLE):
            _logger.debug("no sleep-mode backend by tms: %s", error)
            return
        version = getattr(sys.modules.get("vllm"), "__version__", "as it is installed")
        raise NotSupportedError(
            f"{_VARIABLE}=1 asks for tms in vLLM's sleep mode, but vLLM {version} has no "
            f"sleep-mode backends ({error}). Use vLLM 0.26.0 or later, or unset {_VARIABLE}."
        ) from error
    with contextlib.suppress(ValueError):  # registered already
        factory.register_backend(NAME, "tms._vllm_backend", "TmsBackend")
    if not hasattr(worker.__init__, "_chooses_tms"):
        worker.__init__ = _choosing(worker.__init__)


def _choosing(init: Any) -> Any:
    """A worker's __init__ that chooses the process's allocator when the configuration is known."""

    @functools.wraps(init)
    def chosen(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        _choose(self.vllm_config.model_config)
        cumem = sys.modules.get("vllm.device_allocator.cumem")
        allocator = cumem and cumem.CuMemAllocator.instance
        if isinstance(allocator, Allocator):
            parallel = getattr(self.vllm_config, "parallel_config", None)
            allocator.workers = getattr(parallel, "world_size", 1)
        if self.vllm_config.load_config.load_format == NAME:
            loader: Any = importlib.import_module("tms._vllm_loader")
            loader.config = self.vllm_config

    chosen._chooses_tms = True  # type: ignore[attr-defined]
    return chosen


def _choose(config: Any) -> None:
    if not config.enable_sleep_mode:
        return
    if switched_on(_VARIABLE):
        config.sleep_mode_backend = NAME
    cumem = sys.modules.get("vllm.device_allocator.cumem")
    if config.sleep_mode_backend != NAME:
        ours = cumem and cumem.CuMemAllocator.instance
        if isinstance(ours, Allocator) and not ours.get_current_usage():
            cumem.CuMemAllocator.instance = None  # type: ignore[union-attr]
        return
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cuda():
        raise NotSupportedError(
            f"The sleep-mode backend {NAME!r} needs an NVIDIA GPU, and vLLM runs on "
            f"{platform.device_name or type(platform).__name__!r} here. Choose another with "
            f"--sleep-mode-backend, and unset {_VARIABLE}."
        )
    for setting, why in _REFUSED.items():
        if getattr(config, setting, False):
            raise NotSupportedError(
                f"The sleep-mode backend {NAME!r} cannot be combined with {setting}: {why}. Leave "
                f"the setting out, or use vLLM's own backend (unset {_VARIABLE})."
            )
    allocators = importlib.import_module("vllm.device_allocator.cumem").CuMemAllocator
    if isinstance(allocators.instance, Allocator):
        return
    if allocators.instance is not None and allocators.instance.get_current_usage():
        raise NotSupportedError(
            f"The sleep-mode backend {NAME!r} cannot be used: an engine with another one has "
            "memory in this process. Start the engines in processes of their own, or the other one "
            "with this backend too."
        )
    allocators.instance = Allocator()


class Allocator:
    """vLLM's CuMemAllocator, by tms: memory by tag that can sleep.

    Each `sleep` decides which tags keep their contents, incrementally in host memory, and which
    lose them.

    Raises:
        LibraryNotFoundError: there is no libtms.so.
        NotSupportedError: PyTorch lacks what is needed.
    """

    def __init__(self) -> None:
        _, self._pluggable = attached()
        self._torch = importlib.import_module("torch")
        self._tags: list[str] = []
        self.workers = 1
        """Of the engine, which sleep together."""

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Serves this thread's CUDA tensors from memory with a tag, for the body. Nests.

        After the body, free memory of it goes back to the device. During the body
        expandable_segments is off in PyTorch's settings, for the whole process, as with vLLM's own
        allocator.
        """
        tag = self.default_tag if tag is None else tag
        if tag not in self._tags:
            self._tags.append(tag)
        name = PREFIX + tag
        pool = ThreadScope(
            f"use_memory_pool({name!r})",
            lambda library: _torch.enter_own(("vllm", name), self._pluggable, name.encode()),
            # Not active, because memory that NCCL or cuBLAS take in the body must not be discarded.
            lambda library: {**pausable(name, "host", incremental=True), "active": False},
            disposes=True,
        )
        with without_expandable_segments(self._torch), pool:
            yield

    default_tag = "default"

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Frees the memory of all tags, or of none. What sleeps already stays as it is.

        Args:
            offload_tags: keep their contents in host memory, which copies what has changed since
                the last time; the others lose them. None: the default tag does.

        Raises:
            BackupError: host memory is too short for the contents. After this or any other error
                everything is as before, with its contents, on all workers of the engine.
            GroupError: the same as BackupError, where there are several workers.
        """
        begun = time.perf_counter()
        kept = {self.default_tag} if offload_tags is None else set(_names(offload_tags))
        tags = self._present()
        lost = [tag for tag in tags if tag not in kept]
        own = {found["tag"] for found in _found() if found["live_bytes"]}  # not only of a set
        freed = self._together(_prefixed(tags), _prefixed(lost))
        done = time.perf_counter()
        gc.collect()
        self._torch.cuda.empty_cache()
        _logger.info(
            "tms: sleep freed %.2f GiB (%.3f s), and the contents of %s are lost; giving back "
            "PyTorch's cache took %.3f s.",
            freed / 2**30,
            done - begun,
            ", ".join(tag for tag in lost if PREFIX + tag in own) or "no tag",
            time.perf_counter() - done,
        )

    def _together(self, tags: list[str], lost: list[str]) -> int:
        """Pauses the tags on all workers of this engine, or on none: vLLM schedules for all."""
        meeting = meeting_of_engine("vllm", self.workers)
        if meeting is None:
            return pause(tags, discard=lost)
        part = Part("pause", None, meeting.name, _TIMEOUT, tags=tags, lost=lost)
        return meeting.transact(part, _TIMEOUT)

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Frees the memory of tags and loses their contents. What sleeps already stays as it is."""
        lost = [tag for tag in self._present() if tag in _names(tags)]
        pause(_prefixed(lost), discard=True)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Brings the memory of tags back, with the contents that were kept. What is awake stays so.

        VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY=1, a setting of vLLM after 0.33.0, gives the host memory
        that no sleeping tag needs back to the system; the next sleep then copies all that it keeps.

        Args:
            tags: None: all. "weights" and "kv_cache" may be left out; other tags always wake.

        Raises:
            OutOfMemoryError: the device has too little free memory. What slept sleeps on with its
                contents, and the call can be repeated.
        """
        begun = time.perf_counter()
        woken = [
            tag for tag in self._present() if tags is None or tag in tags or tag not in _DEFERRABLE
        ]
        mapped = resume(_prefixed(woken))
        if mapped:
            seconds = time.perf_counter() - begun
            names = ", ".join(woken)
            _logger.info("tms: %.2f GiB awake of %s (%.3f s).", mapped / 2**30, names, seconds)
        if switched_on("VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY"):
            trim()

    def asleep(self) -> bool:
        """Whether memory of some tag is away."""
        return any(found["paused_bytes"] + found["imported_paused_bytes"] for found in _found())

    def get_current_usage(self) -> int:
        """Bytes that are allocated, awake and asleep, in use or cached."""
        return sum(found["live_bytes"] for found in _found())

    def release_pools(self) -> None:
        """Gives free memory back to the device when a worker shuts down."""
        if self._tags:
            gc.collect()
            self._torch.cuda.empty_cache()

    close = release_pools

    def _present(self) -> list[str]:
        """The tags that have memory, in the order in which they appeared."""
        present = {found["tag"] for found in _found()}
        return [tag for tag in self._tags if PREFIX + tag in present]


def _found() -> list[TagStats]:
    """Returns the stats of vLLM's tags, on each device."""
    devices = stats()["devices"]
    return [tag for device in devices for tag in device["tags"] if tag["tag"].startswith(PREFIX)]


def _prefixed(tags: list[str]) -> list[str]:
    return [PREFIX + tag for tag in tags]


def _names(tags: Iterable[str] | str) -> tuple[str, ...]:
    return (tags,) if isinstance(tags, str) else tuple(tags)
