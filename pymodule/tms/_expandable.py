"""PyTorch's expandable segments, which it maps by itself: where they are refused, or turned off."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

from ._errors import NotSupportedError
from ._private import set_settings, settings


def refuse_expandable_segments() -> None:
    """Raises NotSupportedError where PyTorch maps its memory itself and nothing is interposed.

    Regions then use pools with an allocator of their own, where most versions of PyTorch refuse
    expandable segments (c10/cuda/CUDACachingAllocator.cpp, `alloc_block`).
    """
    if _without.depth:
        return
    for variable in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = os.environ.get(variable, "")
        if _EXPANDABLE.search(text):
            raise NotSupportedError(
                f"{variable} is {text!r}: expandable_segments is not supported with hook_mode "
                "'torch', because then PyTorch maps its memory itself. Start the process with "
                "LD_PRELOAD and hook_mode 'preload', or without expandable_segments:True.",
            )


class _Without:
    """How many callers are in `without_expandable_segments`, and the settings before them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may come in between
        self.depth = 0
        self.before = ""


_without = _Without()


@contextlib.contextmanager
def without_expandable_segments(torch: Any) -> Iterator[None]:
    """PyTorch's expandable_segments setting is off in the body, for the whole process.

    What is mapped already stays as it is. PyTorch takes its settings as one text and resets those
    that it does not name, so all of them are restored afterwards.
    """
    with _without.lock:
        _without.depth += 1
        if _without.depth == 1:
            _without.before = settings(torch)
            if _EXPANDABLE.search(_without.before):
                set_settings(torch, _EXPANDABLE.sub(r"\1False", _without.before))
    try:
        yield
    finally:
        with _without.lock:
            _without.depth -= 1
            if not _without.depth and _EXPANDABLE.search(_without.before):
                set_settings(torch, _without.before)


_EXPANDABLE = re.compile(r"(expandable_segments\s*:\s*)(?:True|1)\b", re.IGNORECASE)
