"""sglang's memory saver by tms: the plugin that sglang loads, beside torch_memory_saver.

TMS_SGLANG=1 makes sglang's `TorchMemorySaverAdapter` a `Saver`. Where torch_memory_saver has
`register_hook_mode` (its pull request 79), hook_mode "tms" is one too, which sglang's argument
--memory-saver-hook-mode (its pull request 32976) names. TMS_SGLANG_KEPT=1 keeps weights in a set
(tms._sglang_loader). An idle engine shares its GPU without its cache (tms._sglang_share).

What this module uses of sglang was read in 0.5.16, 0.5.17 and 0.5.23;
tests/engines/test_sglang_plugin.py compares the names and signatures with the installed sglang.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Callable

from ._arguments import Backup, switched_on
from ._attached import attached
from ._control import pause, resume
from ._cuda_graph import cuda_graph as capture
from ._errors import NotPreloadedError, NotSupportedError
from ._expandable import without_expandable_segments
from ._region import disable, region
from ._subprocess import configure_subprocess

if TYPE_CHECKING:
    import torch

NAME = "tms"
"""The name in --memory-saver-hook-mode and SGLANG_PLUGINS."""

_ADAPTERS = "sglang.srt.utils.torch_memory_saver_adapter"


def register() -> None:
    """The entry point (group sglang.srt.plugins); sglang calls it in its processes."""
    try:
        register_mode = importlib.import_module("torch_memory_saver").register_hook_mode
    except (ImportError, AttributeError):
        pass
    else:
        with contextlib.suppress(ValueError):  # registered already
            register_mode(NAME, Saver, uses_preload=False)
    around: dict[str, Callable[..., Any]] = {}
    if switched_on("TMS_SGLANG"):
        around[f"{_ADAPTERS}.TorchMemorySaverAdapter.create"] = _create
    if switched_on("TMS_SGLANG_KEPT"):
        around.update(importlib.import_module("tms._sglang_loader").hooks())
    if switched_on("TMS_SHARE"):
        with contextlib.suppress(NotPreloadedError):
            around.update(importlib.import_module("tms._sglang_share").hooks())
    if around:
        hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
        for target, hook in around.items():
            hooks.HookRegistry.register(target, hook, hooks.HookType.AROUND)


def _create(original: Callable[[bool], Any], enable: bool) -> Any:
    """The adapter for a part of sglang that saves memory if `enable`."""
    if not enable:
        return original(enable)
    adapter = importlib.import_module(_ADAPTERS).TorchMemorySaverAdapter
    return type("TmsAdapter", (Saver, adapter), {})()


class Saver:
    """The part of torch_memory_saver that sglang uses, by tms.

    Every method raises what the function of tms with its name does, and TmsError in a process into
    which torch_memory_saver's own library is preloaded.
    """

    enabled = True

    def configure_subprocess(self) -> contextlib.AbstractContextManager[None]:
        """`tms.configure_subprocess`."""
        return configure_subprocess()

    @contextlib.contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """`tms.region`. Without a preload, expandable_segments is off during the body.

        Raises:
            NotSupportedError: `cpu_backup_backend` differs from TMS_INIT_CPU_BACKUP_BACKEND.
            ValueError: both backups were asked for.
        """
        library, _ = attached()
        if enable_cpu_backup and enable_disk_backup:
            raise ValueError("enable_cpu_backup and enable_disk_backup exclude each other")
        if cpu_backup_backend not in (None, library.cpu_backup_backend.decode()):
            raise NotSupportedError(
                f"hook_mode {NAME!r} has one kind of host memory for all regions: set "
                f"TMS_INIT_CPU_BACKUP_BACKEND={cpu_backup_backend} instead of cpu_backup_backend."
            )
        backup: Backup = "host" if enable_cpu_backup else "disk" if enable_disk_backup else None
        with contextlib.ExitStack() as stack:
            if not library.interposes:
                stack.enter_context(without_expandable_segments(sys.modules["torch"]))
            stack.enter_context(region(tag, backup))
            yield

    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: tuple[int, int] | None = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> contextlib.AbstractContextManager[None]:
        """`tms.cuda_graph`, which needs libtms.so preloaded."""
        attached()
        backup: Backup = "host" if enable_cpu_backup else None
        return capture(cuda_graph, pool, stream, capture_error_mode, tag=tag, backup=backup)

    def disable(self) -> contextlib.AbstractContextManager[None]:
        """`tms.disable`."""
        attached()
        return disable()

    def pause(self, tag: str | None = None) -> None:
        """`tms.pause`, of all tags if the tag is None or ""."""
        attached()
        pause(tag or None)

    def resume(self, tag: str | None = None) -> None:
        """`tms.resume`, of all tags if the tag is None or ""."""
        attached()
        resume(tag or None)
