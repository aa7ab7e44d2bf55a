"""The interface of both hook modes."""

from __future__ import annotations

from typing import Any, Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase:
    """One way to make memory pausable."""

    @staticmethod
    def create(hook_mode: HookMode) -> HookUtilBase:
        """The way with this name."""
        from .mode_preload import HookUtilModePreload
        from .mode_torch import HookUtilModeTorch

        return HookUtilModeTorch() if hook_mode == "torch" else HookUtilModePreload()

    def get_path_binary(self) -> str | None:
        """The library's file; None where it is part of the process already."""
        return None

    def get_allocator(self) -> Any:
        """The `allocator` of a torch.cuda.MemPool, or None for the interposed cudaMalloc."""
        return None
