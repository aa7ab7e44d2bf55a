"""Warns once of allocations in regions that never reach libtms.so.

That happens where the program reaches cudaMalloc past the preload: in a statically linked runtime,
or by functions that were looked up in the runtime's own handle.
"""

from __future__ import annotations

import ctypes
import os

from . import _torch
from ._library import Library
from ._warning import warn

_MUCH = 32 << 20
"""Bytes; CUDA itself takes less when it loads a kernel."""

_over = False
"""It has warned, or the library has started, and so sees what regions allocate."""

_regions = 0


class Watch:
    """The figures at a region's start, to compare with at its end."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._context, self._free = (0, 0) if _torch.in_use() else _context_and_free()

    def tell(self, scope: object, route: _torch.Route | None) -> None:
        """Warns if memory was taken since, and none of it by the library."""
        global _over
        _over = _over or self._library.stats["started"]
        if _over:
            return
        if _torch.in_use():  # PyTorch knows what it has taken; other processes take memory too
            taken = 0 if route is None else _torch.bytes_of_regions()
            account, reserve = f"PyTorch holds {taken >> 20} MiB for regions", ""
        else:
            context, free = _context_and_free()
            taken = self._free - free if context and context == self._context else 0
            taken = taken if taken >= _MUCH else 0
            account = f"{taken >> 20} MiB of device memory were taken while in {scope}"
            reserve = ", unless another process has taken them"
        if taken > 0:
            _over = True
            warn(
                f"{account}, but no allocation has come to libtms.so: nothing of it is pausable"
                f"{reserve}. `tms doctor --pid {os.getpid()}`, or `tms doctor PROGRAM`, says "
                "whether the program's cudaMalloc can be interposed."
            )


def watch(library: Library) -> Watch | None:
    """For a region that is being entered; None where it is not worth while.

    Of the regions that a process enters before the library is needed, the 1st, 2nd, 4th, 8th and
    so on are watched, so that the cost stays small where none of them allocates.
    """
    global _over, _regions
    if _over or not library.interposes or library.excluded:
        return None
    _regions += 1
    if _regions & (_regions - 1):
        return None
    _over = library.stats["started"] or bool(os.environ.get("TMS_EXCLUDE"))
    return None if _over else Watch(library)


def _context_and_free() -> tuple[int, int]:
    """The thread's current context, 0: none, and the free bytes of its device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
        current, get_info = driver.cuCtxGetCurrent, driver.cuMemGetInfo_v2
    except (OSError, AttributeError):
        return 0, 0
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    if current(ctypes.byref(context)) or not context.value:
        return 0, 0
    if get_info(ctypes.byref(free), ctypes.byref(total)):
        return 0, 0
    return context.value, free.value
