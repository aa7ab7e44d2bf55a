"""Where the library is, and a variable set for a while."""

from __future__ import annotations

from pathlib import Path

from tms import library_path
from tms._subprocess import change_env

__all__ = ["change_env", "get_binary_path_from_package", "is_xpu"]

_STEMS = ("torch_memory_saver_hook_mode_preload", "torch_memory_saver_hook_mode_torch")


def get_binary_path_from_package(stem: str) -> Path:
    """The library's file, by one of its names beside this package.

    All names, with or without the CUDA version, stand for the one library, which itself finds out
    which libcudart it works with. A source checkout has only libtms.so.

    Raises:
        RuntimeError: there is no such name.
        LibraryNotFoundError: there is no library.
    """
    if not stem.startswith(_STEMS):
        raise RuntimeError(f"no library is called {stem!r}; there is {' and '.join(_STEMS)}")
    named = Path(__file__).resolve().parent.parent / f"{stem}.abi3.so"
    return named if named.is_file() else Path(library_path())


def is_xpu() -> bool:
    """False: this package is for CUDA."""
    return False
