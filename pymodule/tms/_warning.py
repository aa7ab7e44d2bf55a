"""Warnings that point at the program's own line."""

from __future__ import annotations

import sys
import warnings

_NOT_THE_PROGRAM = ("tms", "torch_memory_saver", "contextlib")


def warn(text: str) -> None:
    """A RuntimeWarning at the innermost line that is neither this package's nor contextlib's."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _NOT_THE_PROGRAM:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RuntimeWarning, stacklevel=level)
