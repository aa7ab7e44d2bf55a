"""Loads libtms.so for engines' plugins, also in processes that were started without it."""

from __future__ import annotations

import ctypes
import functools
import importlib
from typing import Any

from . import _torch
from ._errors import NotPreloadedError
from ._library import Library, attach, library_path, load
from ._private import private


@functools.cache  # PyTorch's pools point at the allocator: it must live on
def attached() -> tuple[Library, Any]:
    """The library, opened if it was not preloaded, and what makes PyTorch's pools pausable.

    The latter is an `allocator` for torch.cuda.MemPool. If nothing was preloaded, regions use it.

    Raises:
        LibraryNotFoundError: there is no libtms.so.
        NotSupportedError: PyTorch lacks what is needed.
        TmsError: another library with functions of these names was preloaded.
    """
    try:
        library = load()
    except NotPreloadedError:
        library = attach(ctypes.CDLL(library_path()))
    pluggable = private(importlib.import_module("torch"), "_C._cuda_customAllocator")(
        library.address_of("tms_torch_malloc"), library.address_of("tms_torch_free")
    )
    if not library.interposes:
        _torch.allocate_with(pluggable)
    return library, pluggable
