"""The library's functions by ctypes, as clients call them."""

from __future__ import annotations

import ctypes
from typing import Any

from tms._functions import SIGNATURES, typed


class _Functions(ctypes.CDLL):
    """The library's functions, and by name any other of the process (cudaHostGetFlags, say)."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        function = getattr(ctypes.CDLL(None), name)
        setattr(self, name, function)
        return function


class BinaryWrapper:
    """The library, with its functions' signatures in `cdll`.

    Args:
        path_binary: its file, or None if the library is part of the process.

    Raises:
        OSError: it cannot be loaded.
    """

    def __init__(self, path_binary: str | None) -> None:
        self.cdll: Any = _Functions(path_binary)
        for name in SIGNATURES:
            typed(getattr(self.cdll, name), name)

    def set_config(
        self,
        *,
        tag: str,
        interesting_region: bool,
        enable_cpu_backup: bool,
        cpu_backup_backend: str | None = None,
        enable_disk_backup: bool = False,
    ) -> None:
        """Sets the calling thread's settings, until they are set again. None keeps the backend.

        Raises:
            ValueError: both backups were asked for; nothing is set.
        """
        if enable_cpu_backup and enable_disk_backup:
            raise ValueError("enable_cpu_backup and enable_disk_backup exclude each other")
        self.cdll.tms_set_current_tag(tag.encode())
        self.cdll.tms_set_interesting_region(interesting_region)
        self.cdll.tms_set_enable_cpu_backup(enable_cpu_backup)
        self.cdll.tms_set_enable_disk_backup(enable_disk_backup)
        if cpu_backup_backend is not None:
            self.cdll.tms_set_cpu_backup_backend(cpu_backup_backend.encode())
